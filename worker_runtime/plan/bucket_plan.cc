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

}  // namespace muster::plan
