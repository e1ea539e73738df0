#include "agent/guardian/worker_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/machine/pidfd.h"
#include "proto/base/environment.h"

namespace muster::agent {
namespace {

constexpr int kControl = 3;
constexpr char kDefaultPath[] = "/usr/local/bin:/usr/bin:/bin";

// What a child can fail at; an index into kStepNames travels through the pipe.
enum class Step : int { kStreams, kAffinity, kDirectory, kExec };
constexpr std::array<const char*, 4> kStepNames = {"dup2", "sched_setaffinity", "chdir", "execve"};

struct ChildError {
  int error_number;
  Step step;
};

// Everything the child needs, made before the fork.
struct ChildPlan {
  std::vector<std::string> candidates;  // paths to try in turn
  std::vector<char*> argv;
  std::vector<char*> environment;
  pid_t parent = -1;
  int error_fd = -1;
  int group = -1;
};

std::vector<std::string> ListCandidates(const WorkerCommand& command) {
  if (command.argv.empty()) return {};
  const std::string& program = command.argv[0];
  if (program.empty() || absl::StrContains(program, '/')) return {program};
  absl::string_view path = kDefaultPath;
  for (const std::string& variable : command.environment) {
    if (absl::StartsWith(variable, "PATH=")) path = absl::string_view(variable).substr(5);
  }
  std::vector<std::string> candidates;
  for (absl::string_view directory : absl::StrSplit(path, ':')) {
    candidates.push_back(directory.empty() ? absl::StrCat("./", program)
                                           : absl::StrCat(directory, "/", program));
  }
  return candidates;
}

[[noreturn]] void FailChild(const ChildPlan& plan, Step step, int error_number) {
  const ChildError error{error_number, step};
  [[maybe_unused]] const ssize_t n = ::write(plan.error_fd, &error, sizeof error);
  ::_exit(127);
}

void PlaceStreams(const WorkerCommand& command, const ChildPlan& plan) {
  const std::array<int, 3> streams = {command.stdin_fd, command.stdout_fd, command.stderr_fd};
  for (int target = 0; target < 3; ++target) {
    if (streams[target] >= 0 && ::dup2(streams[target], target) < 0)
      FailChild(plan, Step::kStreams, errno);
  }
}

void PlaceControl(const WorkerCommand& command, const ChildPlan& plan) {
  const bool has_control = command.control_fd >= 0;
  if (has_control && ::dup2(command.control_fd, kControl) < 0) {
    FailChild(plan, Step::kStreams, errno);
  }
  if (has_control) ::fcntl(kControl, F_SETFD, 0);
  ::close_range(has_control ? kControl + 1 : kControl, ~0U, CLOSE_RANGE_CLOEXEC);
}

void BindToCpus(const std::vector<int>& cpus, const ChildPlan& plan) {
  if (cpus.empty()) return;
  const int count = *std::max_element(cpus.begin(), cpus.end()) + 1;
  cpu_set_t* set = CPU_ALLOC(count);
  const size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set);
  for (int cpu : cpus) CPU_SET_S(cpu, bytes, set);
  if (::sched_setaffinity(0, bytes, set) != 0) FailChild(plan, Step::kAffinity, errno);
  CPU_FREE(set);
}

// Dispositions first: a signal that came meanwhile is delivered when the mask opens, and must find
// the right one.
void ResetSignals() {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Goes on along PATH after the errors that execvp(3) goes on after; never falls back to a shell.
int ExecFirst(const ChildPlan& plan) {
  int result = ENOENT;
  for (const std::string& candidate : plan.candidates) {
    ::execve(candidate.c_str(), plan.argv.data(), plan.environment.data());
    if (errno == EACCES) result = EACCES;
    if (errno != EACCES && errno != ENOENT && errno != ENOTDIR && errno != ESTALE &&
        errno != ENODEV)
      return errno;
  }
  return result;
}

[[noreturn]] void RunChild(const WorkerCommand& command, const rlimit& open_files,
                           const ChildPlan& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(127);  // it died before the line above
  ::setsid();
  // What it starts is in the group, too. Where it is not let in it runs all the same.
  if (plan.group >= 0) [[maybe_unused]]
    const ssize_t moved = ::write(plan.group, "0", 1);
  PlaceStreams(command, plan);
  PlaceControl(command, plan);
  BindToCpus(command.cpus, plan);
  if (!command.working_directory.empty() && ::chdir(command.working_directory.c_str()) != 0) {
    FailChild(plan, Step::kDirectory, errno);
  }
  ::setrlimit(RLIMIT_NOFILE, &open_files);
  ResetSignals();
  FailChild(plan, Step::kExec, ExecFirst(plan));
}

}  // namespace

std::variant<StartedWorker, StartError> StartWorker(const WorkerCommand& command,
                                                    const rlimit& open_files, int group) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return StartError{errno, "pipe"};
  UniqueFd read_end(ends[0]), low_end(ends[1]);
  // Out of the way of what the child places below.
  UniqueFd write_end(::fcntl(low_end.get(), F_DUPFD_CLOEXEC, kControl + 1));
  if (!write_end) return StartError{errno, "pipe"};
  low_end.reset();
  const ChildPlan plan{ListCandidates(command),
                       ExecPointers(command.argv),
                       ExecPointers(command.environment),
                       ::getpid(),
                       write_end.get(),
                       group};
  const pid_t pid = ::fork();
  if (pid < 0) return StartError{errno, "fork"};
  if (pid == 0) RunChild(command, open_files, plan);
  return StartedWorker{pid, OpenPidfd(pid), std::move(read_end)};
}

std::variant<ExecPending, ExecDone, StartError> ReadExecResult(int exec_result) {
  ChildError error;
  ssize_t n;
  do {
    n = ::read(exec_result, &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return ExecPending{};
  if (n != static_cast<ssize_t>(sizeof error)) return ExecDone{};
  return StartError{error.error_number, kStepNames[static_cast<size_t>(error.step)]};
}

}  // namespace muster::agent
