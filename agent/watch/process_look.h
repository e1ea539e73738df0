// What a process looks like from outside: its state, and what its main thread waits for in the
// kernel. Works whatever the process does, and disturbs it in nothing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/incident_parts.h"

namespace muster::agent {

// Whose processor time counts. Own threads are all but the known ones that use it while nothing
// happens (poll, watch, or answer others): a program does something where its main thread does, or
// another one in its code. Telling them apart reads a file of each thread.
enum class CountedThreads { kAll, kOwn };

struct ProcessLook {
  char state = '?';          // of proc(5); 't': held by a debugger
  std::string wait_channel;  // empty: not known, or it runs
  int64_t syscall = -1;      // number; -1: not known, or in none
  bool is_in_fault = false;  // known to wait in none: for a page, if it waits in the kernel
  int64_t cpu_ticks = 0;     // of the threads that count, so far
  int64_t major_faults = 0;  // pages that it had to wait for, so far
  MonoTime at;
};

// Nothing if there is no such process.
std::optional<ProcessLook> LookAtProcess(pid_t pid, MonoTime now,
                                         CountedThreads threads = CountedThreads::kAll,
                                         const std::string& proc = "/proc");

// What a process and all below it have used so far.
struct ProcessUse {
  int64_t cpu_ticks = 0;     // of the threads that count
  int64_t io_bytes = 0;      // by the calls read and write, of files, pipes and others
  int64_t major_faults = 0;  // pages that were waited for
};

// Nothing if there is no such process, or a debugger holds it. The time of a thread that does not
// count is the process's once the thread has ended.
std::optional<ProcessUse> UseOfTree(pid_t pid, CountedThreads threads,
                                    const std::string& proc = "/proc");

// "asleep (hrtimer_nanosleep)", "computing (98 % of a core)", "stopped by a signal". `before` is an
// earlier look at the same process, if there is one.
//
// Threads: pure.
std::string InWords(const ProcessLook& look, const std::optional<ProcessLook>& before);

// Whether it runs, or has used much of a core since `before`.
//
// Threads: pure.
bool IsComputing(const ProcessLook& look, const std::optional<ProcessLook>& before);

// What holds it, where it is a lock, a disk or another file system, or want of memory: by what it
// waits on in the kernel, or by pages that have to be read again and again.
//
// Threads: pure.
hangs::Hold HoldOf(const ProcessLook& look, const std::optional<ProcessLook>& before);

// Whether it waits for a file system that is to give it something: kDisk by HoldOf, but for calls
// that bring there what was written before, which take as long as there is much of it.
//
// Threads: pure.
bool AwaitsFiles(const ProcessLook& look);

// Whether the process does, or one below it.
bool DoesTreeAwaitFiles(pid_t pid, MonoTime now);

// Whether it and what it has started compute, read or write: by the state of its main thread, and
// by what was used since `before`, `elapsed` ago. Who waits for a file system does io, too, unless
// nothing comes of what it awaits; one that has just ended counts as well.
//
// Threads: pure.
bool IsBusy(const ProcessLook& look, const std::optional<ProcessUse>& use,
            const std::optional<ProcessUse>& before, absl::Duration elapsed);

// Whether a debugger holds it.
inline bool IsTraced(const ProcessLook& look) { return look.state == 't'; }

// Network interfaces that carry traffic to other machines.
std::vector<std::string> ConnectedInterfaces();

}  // namespace muster::agent
