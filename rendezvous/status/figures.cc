#include "rendezvous/status/figures.h"

#include "rendezvous/status/json_parts.h"

namespace muster::status {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeFigures, cpus, cpu_percent, memory_used_mib,
                                                memory_mib)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankFigures, rank, pid, phase, step, silent_seconds,
                                                waited_seconds, cpu_percent, memory_mib, doing,
                                                gpus)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GpuFigures, index, pci_address, name, busy_percent,
                                                memory_used_mib, memory_mib, power_watts, celsius,
                                                sm_mhz, slowed_by, fault)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(FiguresOfNode, schema, node, ranks, gpus)

void FitFigures(size_t bytes_max, FiguresOfNode& figures) {
  if (ToJson(figures).size() <= bytes_max) return;
  for (RankFigures& rank : figures.ranks) rank.doing.clear();
  while (ToJson(figures).size() > bytes_max && !figures.gpus.empty()) figures.gpus.pop_back();
  while (ToJson(figures).size() > bytes_max && !figures.ranks.empty()) figures.ranks.pop_back();
}

std::string ToJson(const FiguresOfNode& figures) { return ToJsonText(figures); }

absl::StatusOr<FiguresOfNode> ParseFigures(absl::string_view json) {
  return FromJsonText<FiguresOfNode>(json, "the figures", kFiguresSchema);
}

}  // namespace muster::status
