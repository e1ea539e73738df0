#include "agent/machine/cpu_binding.h"

#include <algorithm>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

std::vector<int> SortedCpus(const std::vector<Core>& cores) {
  std::vector<int> cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

std::vector<Core> CoresWhere(const Topology& topology, int Core::*field, int value) {
  std::vector<Core> cores;
  std::copy_if(topology.cores.begin(), topology.cores.end(), std::back_inserter(cores),
               [&](const Core& core) { return core.*field == value; });
  return cores;
}

int SocketOf(const Topology& topology, int numa_node) {
  return CoresWhere(topology, &Core::numa_node, numa_node).front().socket;
}

// Neighbours together: with 8 workers on 2 nodes, 0-3 on the first and 4-7 on the second.
std::vector<int> SpreadEvenly(const Topology& topology, int num_workers) {
  absl::btree_set<int> distinct;
  for (const Core& core : topology.cores) distinct.insert(core.numa_node);
  const std::vector<int> nodes(distinct.begin(), distinct.end());
  std::vector<int> assigned;
  for (int i = 0; i < num_workers; ++i) assigned.push_back(nodes[i * nodes.size() / num_workers]);
  return assigned;
}

absl::StatusOr<std::vector<int>> AssignNodes(const Topology& topology, const CpuRequest& request) {
  const std::vector<int>& wanted = request.gpu_numa_nodes;
  const bool known = !wanted.empty() && std::find(wanted.begin(), wanted.end(), -1) == wanted.end();
  if (!known) return SpreadEvenly(topology, request.num_workers);
  for (int local_rank = 0; local_rank < request.num_workers; ++local_rank) {
    if (!CoresWhere(topology, &Core::numa_node, wanted[local_rank]).empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--numa_binding: the GPU of local rank ", local_rank, " is on NUMA node ",
                     wanted[local_rank],
                     ", of which this process may use no CPU; allow it some, or "
                     "leave --numa_binding out"));
  }
  return wanted;
}

std::vector<std::vector<Core>> CoreComplexesOf(const std::vector<Core>& cores) {
  absl::btree_map<int, std::vector<Core>> by_number;
  for (const Core& core : cores) by_number[core.core_complex].push_back(core);
  std::vector<std::vector<Core>> complexes;
  for (auto& [number, members] : by_number) complexes.push_back(std::move(members));
  std::stable_sort(complexes.begin(), complexes.end(), [](const auto& a, const auto& b) {
    return SortedCpus(a).size() > SortedCpus(b).size();
  });
  return complexes;
}

absl::StatusOr<std::vector<Core>> ExclusiveShare(const std::vector<Core>& cores, int index,
                                                 int num_sharers) {
  if (static_cast<int>(cores.size()) < num_sharers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--numa_binding=exclusive: NUMA node ", cores.front().numa_node, " has ", cores.size(),
        " physical cores for ", num_sharers, " workers; start fewer, or use --numa_binding=node"));
  }
  const size_t first = index * cores.size() / num_sharers;
  const size_t last = (index + 1) * cores.size() / num_sharers;
  return std::vector<Core>(cores.begin() + first, cores.begin() + last);
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int>>> AssignCpus(const Topology& topology,
                                                         const CpuRequest& request) {
  std::vector<std::vector<int>> assigned(request.num_workers);
  if (request.binding == NumaBinding::kNone || topology.cores.empty()) return assigned;
  const absl::StatusOr<std::vector<int>> nodes = AssignNodes(topology, request);
  if (!nodes.ok()) return nodes.status();
  absl::btree_map<int, int> num_seen;  // workers of each node so far
  for (int local_rank = 0; local_rank < request.num_workers; ++local_rank) {
    const int node = (*nodes)[local_rank];
    const int index_in_node = num_seen[node]++;
    std::vector<Core> cores = CoresWhere(topology, &Core::numa_node, node);
    if (request.binding == NumaBinding::kSocket) {
      cores = CoresWhere(topology, &Core::socket, SocketOf(topology, node));
    } else if (request.binding == NumaBinding::kExclusive) {
      const int num_sharers = static_cast<int>(std::count(nodes->begin(), nodes->end(), node));
      absl::StatusOr<std::vector<Core>> share = ExclusiveShare(cores, index_in_node, num_sharers);
      if (!share.ok()) return share.status();
      cores = *std::move(share);
    } else if (request.binding == NumaBinding::kCoreComplex) {
      const std::vector<std::vector<Core>> complexes = CoreComplexesOf(cores);
      cores = complexes[index_in_node % complexes.size()];
    }
    assigned[local_rank] = SortedCpus(cores);
  }
  return assigned;
}

}  // namespace muster::agent
