// ZB-H1: 1F1B whose gradients of weights fill the time in which ranks would wait at the end.
#include <algorithm>
#include <numeric>

#include "proto/base/status_macros.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {

absl::StatusOr<Schedule> ZeroBubbleH1(const ScheduleShape& shape) {
  MUSTER_RETURN_IF_ERROR(CheckOneStagePerRank("zb-h1", shape));
  Schedule schedule = {.name = "zb-h1", .micro_batches = shape.micro_batches};
  schedule.rank_of_stage.resize(shape.ranks);
  std::iota(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), 0);
  const int64_t m = shape.micro_batches;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    std::vector<StagePass>& passes = schedule.passes.emplace_back();
    const int64_t warm_up = std::min<int64_t>(m, shape.ranks - rank);
    int64_t forward = 0;
    int64_t weight = 0;
    while (forward < warm_up) passes.push_back({PassKind::kForward, rank, forward++});
    for (int64_t input = 0; input < m; ++input) {
      passes.push_back({PassKind::kInputGradient, rank, input});
      // A rank keeps at most as many micro-batches as the first rank goes forward with.
      if (input >= rank) passes.push_back({PassKind::kWeightGradient, rank, weight++});
      if (forward < m) passes.push_back({PassKind::kForward, rank, forward++});
    }
    while (weight < m) passes.push_back({PassKind::kWeightGradient, rank, weight++});
  }
  return schedule;
}

}  // namespace muster::plan
