// Descriptors of processes: a pid that cannot come to mean another process, readable once the
// process has ended.
//
// Direct system calls: the declarations in <sys/pidfd.h> of glibc 2.36 cannot be linked from C++.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "proto/io/unique_fd.h"

namespace muster::agent {

// Empty on failure, with errno. Closed on exec.
inline UniqueFd OpenPidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// False on failure, with errno.
inline bool SendSignal(const UniqueFd& pidfd, int signal) {
  return ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) == 0;
}

}  // namespace muster::agent
