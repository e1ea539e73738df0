#include "worker_runtime/plan/wire_plan.h"

#include <algorithm>
#include <bit>

#include "muster/sum_tree.h"

namespace muster::plan {
namespace {

constexpr int64_t kLossBytes = 2 * sizeof(double);

int64_t MostRoots(const Plan& plan, int64_t world_size) {
  size_t most = 1;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const LeafRange range = {.begin = rank * plan.accumulation,
                             .end = (rank + 1) * plan.accumulation};
    most = std::max(most, CoverWithSubtrees(range, world_size * plan.accumulation).size());
  }
  return static_cast<int64_t>(most);
}

}  // namespace

WirePlan PlanWire(const Plan& plan, const WireInput& input) {
  const int64_t n = input.world_size;
  if (n == 1) return {};
  const int64_t sent_away = input.gradient_bytes - input.gradient_bytes / n;
  if (plan.mode == SumMode::kFast) {
    // So few bytes go by recursive doubling.
    const int64_t steps = std::bit_width(static_cast<uint64_t>(n - 1));
    return {.gradients = 2 * sent_away, .loss = steps * kLossBytes};
  }
  const int64_t times = MostRoots(plan, n) + 1;
  return {.gradients = times * sent_away, .loss = times * kLossBytes};
}

}  // namespace muster::plan
