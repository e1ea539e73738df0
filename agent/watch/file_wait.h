// Which file a process waits for, where it waits for a file system: one that is mounted from
// elsewhere may never answer, and who is to look after it has to know which it is.
//
// Reads /proc/<pid>: syscall, fd, cwd, mountinfo and, for a path, mem. The last may be stuck with
// the process, so callers read aside (rank_looks.h).
#pragma once

#include <sys/types.h>

#include <string>

namespace muster::agent {

// "openat of /data/train.bin on /data (nfs4)": the system call of the main thread, its file, and
// where and as what that is mounted, as far as each is known. Empty where the call is not about a
// file. `proc` is where procfs is mounted.
//
// Threads: safe.
// Source:  proc(5), /proc/pid/syscall and /proc/pid/mountinfo
std::string FileCallOf(pid_t pid, const std::string& proc = "/proc");

// The same of a process that waits for a file system (HoldOf of process_look.h), or of one below it
// that does, as those that load its data may: "openat of … by its process 12". Empty if none does.
// Sleeps 0.2 s where a process below waits.
//
// Threads: safe.
std::string FileWaitOf(pid_t pid);

}  // namespace muster::agent
