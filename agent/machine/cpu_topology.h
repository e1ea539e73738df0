// Reads the machine's cores through hwloc, for cpu_binding.h.
#pragma once

#include "absl/status/statusor.h"
#include "agent/machine/cpu_binding.h"

namespace muster::agent {

// The cores and hardware threads that this process may use (its affinity and its cgroup), in the
// machine's order. Where hwloc shows no level 3 cache, the cores of a NUMA node are one core
// complex.
//
// Errors:  kInternal if hwloc cannot read the machine.
// Threads: safe. Takes some milliseconds.
absl::StatusOr<Topology> ReadTopology();

}  // namespace muster::agent
