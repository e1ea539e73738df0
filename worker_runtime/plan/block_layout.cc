#include "worker_runtime/plan/block_layout.h"

#include <algorithm>

#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

int64_t RoundUp(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace

BlockLayout PlanBlockLayout(absl::Span<const ParameterInfo> parameters) {
  BlockLayout layout;
  int64_t next = 0;  // element
  const auto end_unit = [&] {
    next = RoundUp(next, kBlockElements);
    if (!layout.units.empty()) layout.units.back().end = next / kBlockElements;
  };
  for (const ParameterInfo& parameter : parameters) {
    MUSTER_CHECK(parameter.unit + 1 >= static_cast<int>(layout.units.size()));
    while (static_cast<int>(layout.units.size()) <= parameter.unit) {
      end_unit();
      const int64_t block = next / kBlockElements;
      layout.units.push_back({block, block});
    }
    layout.offsets.push_back(next);
    next = RoundUp(next + parameter.num_learned(), kParameterAlignment);
  }
  end_unit();
  layout.num_blocks = next / kBlockElements;
  return layout;
}

int64_t PlacedElements(int64_t num_elements) { return RoundUp(num_elements, kParameterAlignment); }

BlockRange ShardOf(BlockRange whole, int64_t rank, int64_t size) {
  const int64_t each = (whole.num_blocks() + size - 1) / size;
  return {std::min(whole.begin + rank * each, whole.end),
          std::min(whole.begin + (rank + 1) * each, whole.end)};
}

}  // namespace muster::plan
