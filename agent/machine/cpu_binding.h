// Decides which CPUs each local worker may use: --numa_binding=node|socket|exclusive|core-complex.
//
// Pure; cpu_topology.h reads the machine.
//
// Source: PyTorch, torch/distributed/run.py (--numa-binding); differs in that it works without GPUs
//         and without numactl, and takes the worker's real GPU instead of the one whose index is
//         the local rank.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {

// One physical core, as far as this process may use it.
struct Core {
  std::vector<int> cpus;  // its hardware threads, the kernel's numbers; not empty
  int numa_node = 0;      // the kernel's number
  int socket = 0;
  int core_complex = 0;  // cores with one number share a level 3 cache
  friend bool operator==(const Core&, const Core&) = default;
};

struct Topology {
  std::vector<Core> cores;  // in the order of the machine, neighbours beside each other
};

struct CpuRequest {
  NumaBinding binding = NumaBinding::kNone;
  int num_workers = 1;
  // NUMA node of each worker's GPU; -1: not known. Shapes: [num_workers], or empty without GPUs.
  std::vector<int> gpu_numa_nodes;
};

// The CPUs of each worker, ascending; an empty list binds nothing. Shapes: result[num_workers].
//
//   node          all CPUs of the worker's NUMA node: that of its GPU; if it is not known, local
//                 ranks are spread evenly, neighbours together
//   socket        all CPUs of the socket of that node
//   exclusive     the node's physical cores shared out evenly among its workers, none to two
//   core-complex  one level 3 cache of the node, largest first, a different one for each worker as
//                 long as they last
//
// Errors: kInvalidArgument if there are more workers than cores for `exclusive`, or a GPU's node
//         has no CPU that this process may use.
absl::StatusOr<std::vector<std::vector<int>>> AssignCpus(const Topology& topology,
                                                         const CpuRequest& request);

}  // namespace muster::agent
