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
  const auto place = [&](bool frozen, int64_t first, std::vector<int64_t>& offsets,
                         std::vector<BlockRange>& units) {
    int64_t next = first * kBlockElements;  // element
    const auto end_unit = [&] {
      next = RoundUp(next, kBlockElements);
      if (!units.empty()) units.back().end = next / kBlockElements;
    };
    for (const ParameterInfo& parameter : parameters) {
      MUSTER_CHECK(parameter.unit + 1 >= static_cast<int>(units.size()));
      while (static_cast<int>(units.size()) <= parameter.unit) {
        end_unit();
        const int64_t block = next / kBlockElements;
        units.push_back({block, block});
      }
      offsets.push_back(next);
      if (parameter.frozen != frozen) continue;
      next = RoundUp(next + parameter.num_elements(), kParameterAlignment);
    }
    end_unit();
    return next / kBlockElements;
  };
  layout.num_blocks = place(false, 0, layout.offsets, layout.units);
  place(true, layout.num_blocks, layout.frozen_offsets, layout.frozen_units);
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].frozen) layout.frozen_offsets[p] = BlockLayout::kNotFrozen;
  }
  return layout;
}

BlockRange ShardOf(BlockRange whole, int64_t rank, int64_t size) {
  const int64_t each = (whole.num_blocks() + size - 1) / size;
  return {std::min(whole.begin + rank * each, whole.end),
          std::min(whole.begin + (rank + 1) * each, whole.end)};
}

}  // namespace muster::plan
