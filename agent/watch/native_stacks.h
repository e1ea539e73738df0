// The native stacks of a process, read from outside by elfutils.
//
// Each thread is stopped for the moment in which its frames are read (ptrace), and goes on as it
// was.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

// Functions of one thread, innermost first.
using Frames = std::vector<std::string>;

struct ThreadStack {
  pid_t thread = 0;
  Frames frames;
};

// Main thread first. Threads after `deadline` are left out. A thread that is killed while it is
// held is waited for, beyond `deadline` if need be: until it has gone, its process cannot end.
//
// Errors: kUnavailable: it has gone, may not be looked into (ptrace), or is in uninterruptible
//         sleep, where waiting for it could take for ever.
// Threads: safe; blocks, so not on the loop.
absl::StatusOr<std::vector<ThreadStack>> ReadStacks(pid_t pid, MonoTime deadline);

}  // namespace muster::agent
