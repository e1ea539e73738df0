// Finds the processes below one process, and ends them.
//
// Reads /proc: the `children` files where the kernel has them (CONFIG_PROC_CHILDREN; their cost is
// that of the tree), else the stat file of every process of the machine. Either is a snapshot of
// something that moves, so callers repeat until HasChildren() says no: below a child subreaper, no
// child means no descendant.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

// One process; `start_time` (clock ticks since boot) tells it from a later one with the same pid.
struct ProcessInfo {
  pid_t pid = -1;
  pid_t parent = -1;
  char state = '?';
  uint64_t start_time = 0;
  friend bool operator==(const ProcessInfo&, const ProcessInfo&) = default;
};

// Reads the text of /proc/<pid>/stat; nothing if it is not one. A program's name may hold spaces
// and parentheses.
//
// Threads: pure.
// Source:  proc(5), /proc/pid/stat
std::optional<ProcessInfo> ParseProcessStat(absl::string_view text);

// The process that has `pid` now; nothing if none has. `proc` is where procfs is mounted.
std::optional<ProcessInfo> ReadProcess(pid_t pid, const std::string& proc = "/proc");

// Every process below `root`, parents before their children, without `root`; zombies are listed.
// Subtrees that begin at one of `except` are left out. `proc` is where procfs is mounted.
std::vector<ProcessInfo> ListDescendants(pid_t root, const std::vector<pid_t>& except = {},
                                         const std::string& proc = "/proc");

// The command line of a process for people, cut where it gets long; its name if it has none or is
// in uninterruptible sleep, "?" if it has gone.
std::string CommandOf(pid_t pid, const std::string& proc = "/proc");

// Whether the process is Python's resource tracker, or joblib's: it removes what its parents have
// left in shared memory once they have ended, and ends by itself. One in uninterruptible sleep is
// waited for a moment, since a tracker that is taken for another process is killed.
//
// Source: CPython, multiprocessing/resource_tracker.py
bool IsResourceTracker(pid_t pid, const std::string& proc = "/proc");

// How long a tracker may take to remove it once its parents were killed: on a busy machine Python
// may wait for a second until it runs. Less than the agent waits for the guardian's end.
inline constexpr absl::Duration kTrackerTime = absl::Seconds(3);

// Takes the trackers out of `processes` and returns them.
std::vector<ProcessInfo> TakeOutTrackers(std::vector<ProcessInfo>& processes);

// SIGKILLs what is below this process in process group `group`, but trackers. Where the group has
// no tracker it does nothing and returns false: the kernel's signal to the group misses nobody
// then, while a process that is forked during this call is left to a sweep.
bool KillGroupButTrackers(pid_t group);

// Whether `signal` has been sent to the process and waits there, because it is blocked.
bool HasPendingSignal(pid_t pid, int signal, const std::string& proc = "/proc");

// Whether a worker handles `signal` itself, as a program that writes a checkpoint then. One that
// stands for others, which shall get the signal with it, does not: a shell, whose trap runs once
// the command before it has ended, and what is not Python and has started another program.
bool TakesSignalItself(pid_t worker, int signal, const std::string& proc = "/proc");

// Whether the calling process has a child, zombies included.
bool HasChildren();

// SIGKILLs every descendant of this process, stopped ones included, until none is left or
// `timeout_ms` is over, and reaps those that become its children. Trackers are not killed before
// `trackers_until`. Blocks meanwhile. For a child subreaper: the guardian at its end, the agent
// after on_lost. Returns the pids that are still there.
std::vector<pid_t> KillOwnDescendants(int timeout_ms,
                                      MonoTime trackers_until = MonoNow() + kTrackerTime);

// Sends `signal` to each of `processes` that is still the process that was listed, never to one
// that has got its pid since.
void SignalProcesses(const std::vector<ProcessInfo>& processes, int signal);

}  // namespace muster::agent
