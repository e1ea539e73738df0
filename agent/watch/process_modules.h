// The ELF files that a process has mapped, as elfutils sees them.
#pragma once

#include <elfutils/libdwfl.h>
#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"

namespace muster::agent {

using ProcessModules = std::unique_ptr<Dwfl, void (*)(Dwfl*)>;

// Opens them without debug information: a search for it could mean the network.
//
// Errors: kUnavailable: it has gone, or may not be looked into.
// Threads: safe; blocks, so not on the loop.
absl::StatusOr<ProcessModules> OpenProcessModules(pid_t pid);

}  // namespace muster::agent
