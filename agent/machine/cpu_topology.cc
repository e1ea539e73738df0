#include "agent/machine/cpu_topology.h"

#include <hwloc.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

std::vector<int> CpusOf(hwloc_const_cpuset_t set) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu))
    cpus.push_back(cpu);
  return cpus;
}

int NumberOfAncestor(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_obj_t object,
                     int otherwise) {
  const hwloc_obj_t ancestor = hwloc_get_ancestor_obj_by_type(topology, type, object);
  return ancestor != nullptr ? static_cast<int>(ancestor->logical_index) : otherwise;
}

Core ReadCore(hwloc_topology_t topology, hwloc_obj_t object) {
  Core core;
  core.cpus = CpusOf(object->cpuset);
  const int node = object->nodeset != nullptr ? hwloc_bitmap_first(object->nodeset) : -1;
  core.numa_node = node >= 0 ? node : 0;
  core.socket = NumberOfAncestor(topology, HWLOC_OBJ_PACKAGE, object, 0);
  // Negative, so that it is no real cache's number.
  core.core_complex = NumberOfAncestor(topology, HWLOC_OBJ_L3CACHE, object, -1 - core.numa_node);
  return core;
}

}  // namespace

absl::StatusOr<Topology> ReadTopology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return absl::InternalError("hwloc_topology_init failed");
  const HwlocTopology topology(raw);
  hwloc_topology_set_flags(
      raw, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM | HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
  if (hwloc_topology_load(raw) != 0) {
    return absl::InternalError(
        absl::StrCat("hwloc cannot read the machine's topology: ", std::strerror(errno)));
  }
  Topology result;
  // A machine that does not tell cores from hardware threads has only the latter.
  const bool has_cores = hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(raw, type, object)) != nullptr;) {
    Core core = ReadCore(raw, object);
    if (!core.cpus.empty()) result.cores.push_back(std::move(core));
  }
  return result;
}

}  // namespace muster::agent
