#include "worker_runtime/plan/flat_layout.h"

namespace muster::plan {
namespace {

int64_t RoundUp(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace

FlatLayout PlanFlatLayout(absl::Span<const ParameterInfo> parameters) {
  FlatLayout layout;
  int64_t next = 0;
  for (const ParameterInfo& parameter : parameters) {
    layout.offsets.push_back(next);
    next = RoundUp(next + parameter.num_elements(), kParameterAlignment);
  }
  layout.num_elements = RoundUp(next, kFlatAlignment);
  return layout;
}

}  // namespace muster::plan
