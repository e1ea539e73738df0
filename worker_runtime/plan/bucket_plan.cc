#include "worker_runtime/plan/bucket_plan.h"

#include <algorithm>

namespace muster::plan {
namespace {

// Whole multiples within `bytes`, at least one.
int64_t BlocksWithin(int64_t bytes, const BucketOptions& options) {
  const int64_t block_bytes = kBlockElements * options.bytes_per_element;
  const int64_t blocks = bytes / block_bytes / options.multiple * options.multiple;
  return std::max(blocks, options.multiple);
}

}  // namespace

std::vector<Bucket> PlanBuckets(absl::Span<const ParameterInfo> parameters,
                                const BlockLayout& layout, BlockRange whole,
                                const BucketOptions& options) {
  std::vector<Bucket> buckets;
  int64_t most = BlocksWithin(std::min(options.first_bytes, options.bytes_max), options);
  for (int64_t end = whole.end; end > whole.begin;) {
    int64_t blocks = std::min(most, end - whole.begin);
    if (blocks > options.multiple) blocks -= blocks % options.multiple;
    Bucket bucket = {.blocks = {end - blocks, end}};
    const int64_t end_element = end * kBlockElements;
    const auto first_behind =
        std::lower_bound(layout.offsets.begin(), layout.offsets.end(), end_element);
    bucket.end_parameter = static_cast<int>(first_behind - layout.offsets.begin());
    bucket.first_parameter = bucket.end_parameter;
    const int64_t first_element = bucket.blocks.first_element();
    const auto end_of = [&](int p) { return layout.offsets[p] + parameters[p].num_learned(); };
    while (bucket.first_parameter > 0 && end_of(bucket.first_parameter - 1) > first_element) {
      --bucket.first_parameter;
    }
    buckets.push_back(bucket);
    end -= blocks;
    most = BlocksWithin(options.bytes_max, options);
  }
  return buckets;
}

std::vector<Bucket> PlanUnitBuckets(const BlockLayout& layout, BlockRange whole,
                                    const BucketOptions& options) {
  const auto bytes_of = [&](BlockRange blocks) {
    return blocks.num_elements() * options.bytes_per_element;
  };
  std::vector<Bucket> buckets;
  for (size_t u = layout.units.size(); u-- > 0;) {
    const BlockRange unit = layout.units[u];
    if (unit.num_blocks() == 0 || !whole.Overlaps(unit)) continue;
    const bool joins =
        !buckets.empty() && bytes_of(buckets.back().blocks) + bytes_of(unit) <= options.bytes_max;
    if (!joins) buckets.push_back({.blocks = {unit.end, unit.end}});
    buckets.back().blocks.begin = unit.begin;
  }
  const auto parameter_at = [&](int64_t block) {
    const auto found =
        std::lower_bound(layout.offsets.begin(), layout.offsets.end(), block * kBlockElements);
    return static_cast<int>(found - layout.offsets.begin());
  };
  for (Bucket& bucket : buckets) {
    bucket.first_parameter = parameter_at(bucket.blocks.begin);
    bucket.end_parameter = parameter_at(bucket.blocks.end);
  }
  return buckets;
}

}  // namespace muster::plan
