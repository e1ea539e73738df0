#include "agent/machine/descendants.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "agent/machine/pidfd.h"
#include "proto/io/read_file.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

// How many of the killed are waited for by descriptor; the others are found gone by the next look.
constexpr size_t kPidfdsMax = 256;
// When to look again although some of the killed have not ended: they may have forked meanwhile.
constexpr absl::Duration kLookAgain = absl::Milliseconds(20);
// What a process that starts another, or reads a page of its program, is held for.
constexpr absl::Duration kHeldMax = absl::Milliseconds(20);

std::vector<pid_t> ListNumbers(const std::string& directory) {
  std::vector<pid_t> numbers;
  for (const std::string& name : NamesIn(directory)) {
    pid_t number;
    if (absl::SimpleAtoi(name, &number)) numbers.push_back(number);
  }
  return numbers;
}

std::string ChildrenFile(const std::string& proc, pid_t pid, pid_t thread) {
  return absl::StrCat(proc, "/", pid, "/task/", thread, "/children");
}

// Answers which processes have a given parent.
class ProcessTable {
 public:
  ProcessTable(std::string proc, pid_t root)
      : proc_(std::move(proc)),
        has_children_files_(::access(ChildrenFile(proc_, root, root).c_str(), R_OK) == 0) {
    if (!has_children_files_) ScanAll();
  }

  std::vector<ProcessInfo> ChildrenOf(pid_t parent) const {
    if (has_children_files_) return ReadChildren(parent);
    const auto it = by_parent_.find(parent);
    return it == by_parent_.end() ? std::vector<ProcessInfo>() : it->second;
  }

 private:
  void ScanAll() {
    for (pid_t pid : ListNumbers(proc_)) {
      if (auto process = ReadProcess(pid, proc_)) by_parent_[process->parent].push_back(*process);
    }
  }

  std::vector<ProcessInfo> ReadChildren(pid_t parent) const {
    std::vector<ProcessInfo> children;
    for (pid_t thread : ListNumbers(absl::StrCat(proc_, "/", parent, "/task"))) {
      const std::string text = TextOf(ChildrenFile(proc_, parent, thread));
      for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
        pid_t pid;
        if (!absl::SimpleAtoi(word, &pid)) continue;
        if (auto process = ReadProcess(pid, proc_)) children.push_back(*process);
      }
    }
    return children;
  }

  const std::string proc_;
  const bool has_children_files_;
  absl::btree_map<pid_t, std::vector<ProcessInfo>> by_parent_;
};

// The pidfd pins the pid; only then is it certain whose start time is read.
UniqueFd SignalProcess(const ProcessInfo& process, int signal) {
  UniqueFd pidfd = OpenPidfd(process.pid);
  if (!pidfd && errno == ESRCH) return pidfd;
  const auto now = ReadProcess(process.pid);
  if (!now || now->start_time != process.start_time) return UniqueFd();
  if (pidfd) {
    SendSignal(pidfd, signal);
  } else {
    ::kill(process.pid, signal);
  }
  return pidfd;
}

void AwaitEnd(std::vector<UniqueFd> pidfds, MonoTime until) {
  while (!pidfds.empty()) {
    const absl::Duration left = until - MonoNow();
    if (left <= absl::ZeroDuration()) return;
    std::vector<pollfd> polled;
    for (const UniqueFd& fd : pidfds) polled.push_back({fd.get(), POLLIN, 0});
    const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    if (::poll(polled.data(), polled.size(), timeout_ms) < 0 && errno != EINTR) return;
    std::vector<UniqueFd> alive;
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) alive.push_back(std::move(pidfds[i]));
    }
    pidfds = std::move(alive);
  }
}

}  // namespace

std::optional<ProcessInfo> ReadProcess(pid_t pid, const std::string& proc) {
  return ParseProcessStat(TextOf(absl::StrCat(proc, "/", pid, "/stat")));
}

std::optional<ProcessInfo> ParseProcessStat(absl::string_view text) {
  const size_t open = text.find(" (");
  const size_t close = text.rfind(") ");
  if (open == absl::string_view::npos || close == absl::string_view::npos) return std::nullopt;
  const std::vector<absl::string_view> fields = absl::StrSplit(text.substr(close + 2), ' ');
  constexpr size_t kState = 0, kParent = 1, kStartTime = 19;  // fields 3, 4 and 22 of proc(5)
  if (fields.size() <= kStartTime || fields[kState].size() != 1) return std::nullopt;
  ProcessInfo process;
  process.state = fields[kState][0];
  if (!absl::SimpleAtoi(text.substr(0, open), &process.pid) ||
      !absl::SimpleAtoi(fields[kParent], &process.parent) ||
      !absl::SimpleAtoi(fields[kStartTime], &process.start_time)) {
    return std::nullopt;
  }
  return process;
}

std::vector<ProcessInfo> ListDescendants(pid_t root, const std::vector<pid_t>& except,
                                         const std::string& proc) {
  const ProcessTable table(proc, root);
  // A pid used again while the table was read could close a circle.
  absl::btree_set<pid_t> seen(except.begin(), except.end());
  seen.insert(root);
  std::vector<ProcessInfo> found;
  const auto append_children = [&](pid_t parent) {
    for (const ProcessInfo& child : table.ChildrenOf(parent)) {
      if (seen.insert(child.pid).second) found.push_back(child);
    }
  };
  append_children(root);
  for (size_t i = 0; i < found.size(); ++i) append_children(found[i].pid);
  return found;
}

namespace {

// Each ends with NUL. They are in the memory of the process: whoever asks for those of one that the
// kernel does not let go may wait for as long, so that it has none, unless it is let go within
// `patience`.
std::string ArgumentsOf(pid_t pid, const std::string& proc,
                        absl::Duration patience = absl::ZeroDuration()) {
  const MonoTime until = MonoNow() + patience;
  for (;;) {
    const std::optional<ProcessInfo> process = ReadProcess(pid, proc);
    if (!process || process->state != 'D') return TextOf(absl::StrCat(proc, "/", pid, "/cmdline"));
    if (MonoNow() >= until) return "";
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace

std::string CommandOf(pid_t pid, const std::string& proc) {
  constexpr size_t kBytesMax = 80;
  std::string command = ArgumentsOf(pid, proc);
  if (command.empty()) command = TextOf(absl::StrCat(proc, "/", pid, "/comm"));
  // Arguments end with NUL; nothing of a foreign command line may move our cursor.
  for (char& c : command) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  absl::StripTrailingAsciiWhitespace(&command);
  if (command.empty()) return "?";
  return command.size() > kBytesMax ? absl::StrCat(command.substr(0, kBytesMax), "...") : command;
}

bool IsResourceTracker(pid_t pid, const std::string& proc) {
  const std::string command = ArgumentsOf(pid, proc, kHeldMax);
  const std::vector<absl::string_view> words = absl::StrSplit(command, '\0');
  // python -c 'from multiprocessing.resource_tracker import main;main(5)', and joblib's own.
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    if (words[i] == "-c") return absl::StrContains(words[i + 1], "resource_tracker import main");
  }
  return false;
}

std::vector<ProcessInfo> TakeOutTrackers(std::vector<ProcessInfo>& processes) {
  const auto trackers = std::stable_partition(
      processes.begin(), processes.end(),
      [](const ProcessInfo& process) { return !IsResourceTracker(process.pid); });
  std::vector<ProcessInfo> taken(trackers, processes.end());
  processes.erase(trackers, processes.end());
  return taken;
}

bool KillGroupButTrackers(pid_t group) {
  std::vector<ProcessInfo> members = ListDescendants(::getpid());
  std::erase_if(members, [&](const ProcessInfo& p) { return ::getpgid(p.pid) != group; });
  // Its leader is the worker, whatever the command line says.
  const auto others = std::stable_partition(members.begin(), members.end(),
                                            [&](const ProcessInfo& p) { return p.pid == group; });
  std::vector<ProcessInfo> killed(members.begin(), others);
  members.erase(members.begin(), others);
  if (TakeOutTrackers(members).empty()) return false;
  killed.insert(killed.end(), members.begin(), members.end());
  SignalProcesses(killed, SIGKILL);
  return true;
}

namespace {

// Whether the set of that name in /proc/<pid>/status has the signal.
bool IsInSet(const std::string& status, absl::string_view name, int signal) {
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    uint64_t set = 0;
    if (!absl::ConsumePrefix(&line, name) ||
        !absl::SimpleHexAtoi(absl::StripAsciiWhitespace(line), &set)) {
      continue;
    }
    return (set >> (signal - 1) & 1) != 0;
  }
  return false;
}

// The path of what it runs; empty if it has ended, or is another user's.
std::string ProgramOf(pid_t pid, const std::string& proc) {
  char path[PATH_MAX];
  const ssize_t size = ::readlink(absl::StrCat(proc, "/", pid, "/exe").c_str(), path, sizeof(path));
  return std::string(path, size > 0 ? static_cast<size_t>(size) : 0);
}

bool IsShell(absl::string_view name) {
  for (const absl::string_view shell :
       {"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "mksh", "fish", "tcsh", "csh"}) {
    if (name == shell) return true;
  }
  return false;
}

}  // namespace

bool HasPendingSignal(pid_t pid, int signal, const std::string& proc) {
  const std::string status = TextOf(absl::StrCat(proc, "/", pid, "/status"));
  return IsInSet(status, "ShdPnd:", signal) || IsInSet(status, "SigPnd:", signal);
}

bool TakesSignalItself(pid_t worker, int signal, const std::string& proc) {
  const std::string status = TextOf(absl::StrCat(proc, "/", worker, "/status"));
  if (!IsInSet(status, "SigCgt:", signal)) return false;
  const std::string program = ProgramOf(worker, proc);
  const absl::string_view name = absl::string_view(program).substr(program.rfind('/') + 1);
  if (program.empty() || IsShell(name)) return false;
  if (absl::StartsWith(name, "python") || absl::StartsWith(name, "pypy")) return true;
  for (const ProcessInfo& process : ListDescendants(worker, {}, proc)) {
    if (ProgramOf(process.pid, proc) != program) return false;
  }
  return true;
}

bool HasChildren() {
  siginfo_t info;
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

void SignalProcesses(const std::vector<ProcessInfo>& processes, int signal) {
  for (const ProcessInfo& process : processes) SignalProcess(process, signal);
}

// One pass is not enough: what is listed may fork before it is hit, and a killed parent hands its
// children to us. So each turn lists them again, kills all that it finds, waits a moment by pidfd
// for their ends, and reaps those that became ours; the kernel's "no child" is the only proof of
// the end.
std::vector<pid_t> KillOwnDescendants(int timeout_ms, MonoTime trackers_until) {
  const pid_t self = ::getpid();
  const MonoTime deadline = MonoNow() + absl::Milliseconds(timeout_ms);
  while (true) {
    const std::vector<ProcessInfo> left = ListDescendants(self);
    std::vector<UniqueFd> ending;
    for (const ProcessInfo& process : left) {
      const bool has_time = MonoNow() < trackers_until && IsResourceTracker(process.pid);
      UniqueFd pidfd = SignalProcess(process, has_time ? 0 : SIGKILL);
      if (pidfd && ending.size() < kPidfdsMax) ending.push_back(std::move(pidfd));
    }
    AwaitEnd(std::move(ending), Min(deadline, MonoNow() + kLookAgain));
    for (const ProcessInfo& process : left) {
      if (process.parent == self) ::waitpid(process.pid, nullptr, WNOHANG);
    }
    if (!HasChildren()) return {};
    if (MonoNow() < deadline) continue;
    std::vector<pid_t> pids;
    for (const ProcessInfo& process : ListDescendants(self)) pids.push_back(process.pid);
    return pids;
  }
}

}  // namespace muster::agent
