#include "worker_runtime/plan/block_layout.h"

#include <algorithm>
#include <utility>

#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

int64_t RoundUp(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Adds the blocks of elements [first, end) to those before.
void AddCut(int64_t first, int64_t end, std::vector<BlockRange>& cut) {
  const BlockRange blocks = {first / kBlockElements, RoundUp(end, kBlockElements) / kBlockElements};
  if (cut.empty() || cut.back().end < blocks.begin) {
    cut.push_back(blocks);
  } else {
    cut.back().end = blocks.end;
  }
}

}  // namespace

BlockLayout PlanBlockLayout(absl::Span<const ParameterInfo> parameters) {
  BlockLayout layout;
  const auto place = [&](bool frozen, int64_t first, std::vector<int64_t>& offsets,
                         std::vector<BlockRange>& units) {
    int64_t next = first * kBlockElements;  // element
    bool is_cut = false;
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
      const bool is_here = parameter.frozen == frozen;
      if (is_here && std::exchange(is_cut, parameter.cut) != parameter.cut) {
        next = RoundUp(next, kBlockElements);
      }
      offsets.push_back(next);
      if (!is_here) continue;
      next = RoundUp(next + parameter.num_elements(), kParameterAlignment);
      if (is_cut && !frozen) AddCut(offsets.back(), next, layout.cut);
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
