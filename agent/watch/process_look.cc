#include "agent/watch/process_look.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "agent/machine/descendants.h"
#include "agent/watch/torch_hook.h"
#include "proto/io/read_file.h"

namespace muster::agent {
namespace {

constexpr double kBusyShare = 0.2;  // of a core

// Whether a thread waits for the answer of a file system that is not this machine's own: the names
// of what the clients of the kernel wait on.
bool WaitsForAFileSystem(const ProcessLook& look) {
  constexpr absl::string_view kBegin[] = {
      "request_wait_answer", "fuse_",   "nfs",        "rpc_wait",         "cifs_", "smb2_", "ceph_",
      "p9_client",           "ptlrpc_", "cl_sync_io", "wait_for_response"};
  return std::any_of(std::begin(kBegin), std::end(kBegin), [&](absl::string_view begin) {
    return absl::StartsWith(look.wait_channel, begin);
  });
}

// Why a thread sleeps in the kernel: from the name of what it waits on, where the kernel tells it,
// else from its system call.
std::string WaitInWords(const ProcessLook& look) {
  struct Known {
    absl::string_view part;
    int64_t syscall;
    absl::string_view words;
  };
  static const Known kKnown[] = {
      {"nanosleep", SYS_clock_nanosleep, "asleep"},
      {"nanosleep", SYS_nanosleep, "asleep"},
      {"futex", SYS_futex, "waiting for a lock or for another thread"},
      {"pipe_read", SYS_read, "reading from a pipe, a file or a device"},
      {"pipe_write", SYS_write, "writing to a pipe, a file or a device"},
      {"do_wait", SYS_wait4, "waiting for a child process"},
      {"flock", SYS_flock, "waiting for a file lock"},
      {"locks_lock", SYS_fcntl, "waiting for a file lock"},
      {"ep_poll", SYS_epoll_pwait, "waiting for a descriptor"},
      {"poll_schedule", SYS_ppoll, "waiting for a descriptor"},
      {"do_select", SYS_pselect6, "waiting for a descriptor"},
      {"wait_data", SYS_recvfrom, "waiting for data from a socket"},
      {"unix_stream_read", SYS_recvmsg, "waiting for data from a socket"},
      {"sigsuspend", SYS_rt_sigsuspend, "waiting for a signal"},
      {"pause", SYS_rt_sigtimedwait, "waiting for a signal"},
  };
  if (WaitsForAFileSystem(look)) return "waiting for a file system";
  for (const Known& known : kKnown) {
    if (absl::StrContains(look.wait_channel, known.part)) return std::string(known.words);
  }
  for (const Known& known : kKnown) {
    if (look.wait_channel.empty() && look.syscall == known.syscall) return std::string(known.words);
  }
  return "waiting in the kernel";
}

// Fields of /proc/<pid>/stat, from the state on; empty if there is no such process.
// Source: proc(5): behind the name come the state (field 3), ..., majflt (12), ..., utime (14),
//         stime (15), cutime (16) and cstime (17), those of children that have ended, ...,
//         num_threads (20).
std::vector<absl::string_view> FieldsBehindTheName(const std::string& stat) {
  constexpr size_t kFieldsUsed = 18;
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  if (fields.size() < kFieldsUsed) fields.clear();
  return fields;
}

int64_t NumberIn(absl::string_view text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

// Beginnings of the names of threads that use processor time while nothing happens.
// Source: torch 2.15: setThreadName in torch/csrc/distributed/c10d, in TensorPipe, and in
//         gloo/transport/tcp/loop.cc; NCCL: ncclSetThreadName. Seen in running programs, but for
//         those of devices.
constexpr absl::string_view kPollingThreads[] = {
    "TP_SHM_reactor",  // TensorPipe's, of RPC: half a core
    "TP_IBV_reactor",
    "gloo_tcp_loop",    // wakes each 10 ms; one of each group
    "pt_tcpstore",      // serves PyTorch's store to others
    "pt_nccl_watchdg",  // looks each 100 ms
    "pt_nccl_heartbt",
    "NCCL Progress",  // spins while a collective waits for a peer
    "NCCL GIN Progre", "NCCL RMA Proxy",
    "pt_workerserver",  // answers the agent (torch_watch.h)
    kTorchHookThread,
};

bool IsPolling(const std::string& stat) {
  const size_t begin = stat.find('(');
  if (begin == std::string::npos) return false;
  const absl::string_view name = absl::string_view(stat).substr(begin + 1);
  return std::any_of(std::begin(kPollingThreads), std::end(kPollingThreads),
                     [&](absl::string_view each) { return absl::StartsWith(name, each); });
}

// The time that does not count of a process whose directory in /proc is `directory`.
int64_t PollingTicks(const std::string& directory, absl::Span<const absl::string_view> fields,
                     CountedThreads threads) {
  if (threads == CountedThreads::kAll || NumberIn(fields[17]) <= 1) return 0;
  int64_t ticks = 0;
  std::error_code error;
  // It may end meanwhile, so steps must not throw.
  for (std::filesystem::directory_iterator task(directory + "/task", error), end; task != end;
       task.increment(error)) {
    const std::string stat = TextOf(task->path().string() + "/stat");
    if (!IsPolling(stat)) continue;
    const std::vector<absl::string_view> of_thread = FieldsBehindTheName(stat);
    if (!of_thread.empty()) ticks += NumberIn(of_thread[11]) + NumberIn(of_thread[12]);
  }
  return ticks;
}

// Calls that bring to a disk what was counted as written before. It is not known either of one that
// cannot be read.
bool MayWriteOut(const ProcessLook& look) {
  constexpr int64_t kCalls[] = {SYS_fsync,           SYS_fdatasync, SYS_sync,  SYS_syncfs,
                                SYS_sync_file_range, SYS_msync,     SYS_close, SYS_write,
                                SYS_pwrite64,        SYS_writev};
  const bool is_known = look.syscall >= 0 || look.is_in_fault;
  return !is_known ||
         std::find(std::begin(kCalls), std::end(kCalls), look.syscall) != std::end(kCalls);
}

// Source: proc(5), /proc/pid/io: rchar and wchar.
int64_t BytesIn(const std::string& io) {
  int64_t bytes = 0;
  for (const absl::string_view line : absl::StrSplit(io, '\n')) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "rchar:") || absl::ConsumePrefix(&rest, "wchar:")) {
      bytes += NumberIn(rest);
    }
  }
  return bytes;
}

}  // namespace

std::optional<ProcessUse> UseOfTree(pid_t pid, CountedThreads threads, const std::string& proc) {
  std::vector<pid_t> pids = {pid};
  for (const ProcessInfo& below : ListDescendants(pid, {}, proc)) pids.push_back(below.pid);
  ProcessUse use;
  for (const pid_t each : pids) {
    const std::string directory = absl::StrCat(proc, "/", each);
    const std::string stat = TextOf(directory + "/stat");
    const std::vector<absl::string_view> fields = FieldsBehindTheName(stat);
    if (each == pid && (fields.empty() || fields[0] == "t")) return std::nullopt;
    if (fields.empty()) continue;
    for (size_t i = 11; i <= 14; ++i) use.cpu_ticks += NumberIn(fields[i]);
    use.cpu_ticks -= PollingTicks(directory, fields, threads);
    use.io_bytes += BytesIn(TextOf(directory + "/io"));
    use.major_faults += NumberIn(fields[9]);
  }
  return use;
}

std::optional<ProcessLook> LookAtProcess(pid_t pid, MonoTime now, CountedThreads threads,
                                         const std::string& proc) {
  const std::string directory = absl::StrCat(proc, "/", pid);
  const std::string stat = TextOf(directory + "/stat");
  const std::vector<absl::string_view> fields = FieldsBehindTheName(stat);
  if (fields.empty()) return std::nullopt;
  ProcessLook look{.state = fields[0][0], .at = now};
  look.cpu_ticks =
      NumberIn(fields[11]) + NumberIn(fields[12]) - PollingTicks(directory, fields, threads);
  look.major_faults = NumberIn(fields[9]);
  look.wait_channel = TextOf(directory + "/wchan");
  if (look.wait_channel == "0") look.wait_channel.clear();
  const std::string call = TextOf(directory + "/syscall");
  if (!absl::SimpleAtoi(call.substr(0, call.find(' ')), &look.syscall)) look.syscall = -1;
  look.is_in_fault = absl::StartsWith(call, "-1 ");
  return look;
}

namespace {

// The share of a core since `before`; 0: not known.
double ShareOfACore(const ProcessLook& look, const std::optional<ProcessLook>& before) {
  if (!before || look.at <= before->at) return 0;
  const double seconds = static_cast<double>(look.cpu_ticks - before->cpu_ticks) /
                         static_cast<double>(sysconf(_SC_CLK_TCK));
  return seconds / absl::ToDoubleSeconds(look.at - before->at);
}

}  // namespace

bool IsComputing(const ProcessLook& look, const std::optional<ProcessLook>& before) {
  return look.state == 'R' || (look.state == 'S' && ShareOfACore(look, before) >= kBusyShare);
}

std::string InWords(const ProcessLook& look, const std::optional<ProcessLook>& before) {
  const std::string where =
      look.wait_channel.empty() ? "" : absl::StrCat(" (", look.wait_channel, ")");
  switch (look.state) {
    case 'T':
      return "stopped by a signal";
    case 't':
      return "held by a debugger";
    case 'Z':
    case 'X':
      return "dead";
    case 'D':
      if (WaitsForAFileSystem(look)) break;
      return absl::StrCat("in the kernel's uninterruptible sleep", where,
                          ": a disk, a network file system or a device");
    default:
      break;
  }
  const double share = ShareOfACore(look, before);
  if (share >= kBusyShare) {
    return absl::StrCat("computing (", std::llround(100 * share), " % of a core)");
  }
  if (look.state == 'R') return "computing";
  return absl::StrCat(WaitInWords(look), where);
}

hangs::Hold HoldOf(const ProcessLook& look, const std::optional<ProcessLook>& before) {
  // Functions of the kernel that look for memory, or let a process wait that has used more than it
  // may.
  constexpr absl::string_view kMemory[] = {"mem_cgroup", "try_to_free",     "shrink_", "reclaim",
                                           "swap_read",  "folio_lock_swap", "oom_"};
  constexpr absl::string_view kLock[] = {"futex", "flock", "locks_lock", "locks_mandatory"};
  constexpr double kFaultsPerSecond = 100;
  const auto waits_in = [&](absl::Span<const absl::string_view> parts) {
    return std::any_of(parts.begin(), parts.end(), [&](absl::string_view part) {
      return absl::StrContains(look.wait_channel, part);
    });
  };
  if (waits_in(kMemory)) return hangs::Hold::kMemory;
  const bool can_wait_for_pages = look.state == 'D' || look.state == 'R';
  if (can_wait_for_pages && before && look.at > before->at) {
    const double faults = static_cast<double>(look.major_faults - before->major_faults) /
                          absl::ToDoubleSeconds(look.at - before->at);
    if (faults >= kFaultsPerSecond) return hangs::Hold::kMemory;
  }
  if (look.state == 'D' || WaitsForAFileSystem(look)) return hangs::Hold::kDisk;
  const bool is_futex = look.wait_channel.empty() && look.syscall == SYS_futex;
  return look.state == 'S' && (is_futex || waits_in(kLock)) ? hangs::Hold::kLock
                                                            : hangs::Hold::kUnknown;
}

bool AwaitsFiles(const ProcessLook& look) {
  return HoldOf(look, std::nullopt) == hangs::Hold::kDisk && !MayWriteOut(look);
}

bool DoesTreeAwaitFiles(pid_t pid, MonoTime now) {
  std::vector<pid_t> pids = {pid};
  for (const ProcessInfo& below : ListDescendants(pid)) pids.push_back(below.pid);
  return std::any_of(pids.begin(), pids.end(), [now](pid_t each) {
    const std::optional<ProcessLook> look = LookAtProcess(each, now);
    return look && AwaitsFiles(*look);
  });
}

bool IsBusy(const ProcessLook& look, const std::optional<ProcessUse>& use,
            const std::optional<ProcessUse>& before, absl::Duration elapsed) {
  // A process may get little of a core that others want, too.
  constexpr double kShare = 0.05;
  constexpr double kBytesPerSecond = 64 << 10;
  if (look.state == 'R') return true;
  // Its last pulse is older than its end, of which its agent is about to hear.
  if (look.state == 'Z' || look.state == 'X') return true;
  const bool is_compared = use && before && elapsed > absl::ZeroDuration();
  if (look.state == 'D' || HoldOf(look, std::nullopt) == hangs::Hold::kDisk) {
    const bool may_have_come = !is_compared || use->major_faults > before->major_faults;
    if (may_have_come || !AwaitsFiles(look)) return true;
  }
  if (!is_compared) return false;
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const double share = static_cast<double>(use->cpu_ticks - before->cpu_ticks) /
                       static_cast<double>(sysconf(_SC_CLK_TCK)) / seconds;
  const double bytes = static_cast<double>(use->io_bytes - before->io_bytes) / seconds;
  return share >= kShare || bytes >= kBytesPerSecond;
}

std::vector<std::string> ConnectedInterfaces() {
  std::vector<std::string> names;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return names;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    const unsigned wanted = IFF_UP | IFF_RUNNING;
    if ((each->ifa_flags & IFF_LOOPBACK) == 0 && (each->ifa_flags & wanted) == wanted) {
      names.emplace_back(each->ifa_name);
    }
  }
  freeifaddrs(list);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace muster::agent
