#include "agent/watch/process_look.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"

namespace muster::agent {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

constexpr double kBusyShare = 0.2;  // of a core

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
  for (const Known& known : kKnown) {
    if (absl::StrContains(look.wait_channel, known.part)) return std::string(known.words);
  }
  for (const Known& known : kKnown) {
    if (look.wait_channel.empty() && look.syscall == known.syscall) return std::string(known.words);
  }
  return "waiting in the kernel";
}

}  // namespace

std::optional<ProcessLook> LookAtProcess(pid_t pid, MonoTime now, const std::string& proc) {
  const std::string directory = absl::StrCat(proc, "/", pid);
  const std::string stat = ReadAll(directory + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  // Source: proc(5): behind the name come the state (field 3), ..., majflt (12), ..., utime (14) and
  //         stime (15).
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  if (fields.size() < 13) return std::nullopt;
  ProcessLook look{.state = fields[0].empty() ? '?' : fields[0][0], .at = now};
  int64_t user = 0;
  int64_t system = 0;
  if (absl::SimpleAtoi(fields[11], &user) && absl::SimpleAtoi(fields[12], &system)) {
    look.cpu_ticks = user + system;
  }
  if (!absl::SimpleAtoi(fields[9], &look.major_faults)) look.major_faults = 0;
  look.wait_channel = ReadAll(directory + "/wchan");
  if (look.wait_channel == "0") look.wait_channel.clear();
  const std::string call = ReadAll(directory + "/syscall");
  if (!absl::SimpleAtoi(call.substr(0, call.find(' ')), &look.syscall)) look.syscall = -1;
  return look;
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
      return absl::StrCat("in the kernel's uninterruptible sleep", where,
                          ": a disk, a network file system or a device");
    default:
      break;
  }
  if (before && look.at > before->at) {
    const double seconds = static_cast<double>(look.cpu_ticks - before->cpu_ticks) /
                           static_cast<double>(sysconf(_SC_CLK_TCK));
    const double share = seconds / absl::ToDoubleSeconds(look.at - before->at);
    if (share >= kBusyShare) {
      return absl::StrCat("computing (", std::llround(100 * share), " % of a core)");
    }
  }
  if (look.state == 'R') return "computing";
  return absl::StrCat(WaitInWords(look), where);
}

verdict::Hold HoldOf(const ProcessLook& look, const std::optional<ProcessLook>& before) {
  // Where the kernel looks for memory, or lets a process wait that has used more than it may.
  constexpr absl::string_view kMemory[] = {"mem_cgroup", "try_to_free",     "shrink_", "reclaim",
                                           "swap_read",  "folio_lock_swap", "oom_"};
  constexpr absl::string_view kLock[] = {"futex", "flock", "locks_lock", "locks_mandatory"};
  constexpr double kFaultsPerSecond = 100;
  const auto waits_in = [&](absl::Span<const absl::string_view> parts) {
    return std::any_of(parts.begin(), parts.end(), [&](absl::string_view part) {
      return absl::StrContains(look.wait_channel, part);
    });
  };
  if (waits_in(kMemory)) return verdict::Hold::kMemory;
  const bool can_wait_for_pages = look.state == 'D' || look.state == 'R';
  if (can_wait_for_pages && before && look.at > before->at) {
    const double faults = static_cast<double>(look.major_faults - before->major_faults) /
                          absl::ToDoubleSeconds(look.at - before->at);
    if (faults >= kFaultsPerSecond) return verdict::Hold::kMemory;
  }
  if (look.state == 'D') return verdict::Hold::kDisk;
  const bool is_futex = look.wait_channel.empty() && look.syscall == SYS_futex;
  return look.state == 'S' && (is_futex || waits_in(kLock)) ? verdict::Hold::kLock
                                                            : verdict::Hold::kUnknown;
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
