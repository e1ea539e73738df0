#include "worker_runtime/plan/bucket_plan.h"

namespace muster::plan {
namespace {

// Whether the last bucket may grow down to `first_element`.
bool Fits(const std::vector<Bucket>& buckets, int64_t first_element, const BucketOptions& options) {
  const Bucket& last = buckets.back();
  const auto bytes = [&](int64_t elements) { return elements * options.bytes_per_element; };
  if (bytes(last.end_element - first_element) > options.bytes_max) return false;
  return buckets.size() > 1 || bytes(last.num_elements()) < options.first_bytes;
}

}  // namespace

std::vector<Bucket> PlanBuckets(absl::Span<const ParameterInfo> parameters,
                                const FlatLayout& layout, const BucketOptions& options) {
  std::vector<Bucket> buckets;
  for (int i = static_cast<int>(parameters.size()); i-- > 0;) {
    const int64_t first_element = layout.offsets[i];
    const bool fits = !buckets.empty() && Fits(buckets, first_element, options);
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
