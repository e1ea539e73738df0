#include "worker_runtime/plan/bucket_plan.h"

namespace muster::plan {

std::vector<Bucket> PlanBuckets(absl::Span<const ParameterInfo> parameters,
                                const FlatLayout& layout, const BucketOptions& options) {
  std::vector<Bucket> buckets;
  for (int i = static_cast<int>(parameters.size()); i-- > 0;) {
    const int64_t first_element = layout.offsets[i];
    const int64_t bytes_max = buckets.size() == 1 ? options.first_bytes_max : options.bytes_max;
    const bool fits =
        !buckets.empty() &&
        (buckets.back().end_element - first_element) * options.bytes_per_element <= bytes_max;
    if (!fits) {
      const int64_t end_element =
          buckets.empty() ? layout.num_elements : buckets.back().first_element;
      buckets.push_back({.end_parameter = i + 1, .end_element = end_element});
    }
    buckets.back().first_parameter = i;
    buckets.back().first_element = first_element;
  }
  return buckets;
}

}  // namespace muster::plan
