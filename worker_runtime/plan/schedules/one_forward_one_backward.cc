// 1F1B: a rank goes backward as soon as it can, so that it keeps the activations of few
// micro-batches.
#include <algorithm>
#include <numeric>

#include "proto/base/status_macros.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {

absl::StatusOr<Schedule> OneForwardOneBackward(const ScheduleShape& shape) {
  MUSTER_RETURN_IF_ERROR(CheckOneStagePerRank("1f1b", shape));
  Schedule schedule = {.name = "1f1b", .micro_batches = shape.micro_batches};
  schedule.rank_of_stage.resize(shape.ranks);
  std::iota(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), 0);
  const int64_t m = shape.micro_batches;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    std::vector<StagePass>& passes = schedule.passes.emplace_back();
    const int64_t warm_up = std::min<int64_t>(m, shape.ranks - rank);
    int64_t forward = 0;
    while (forward < warm_up) passes.push_back({PassKind::kForward, rank, forward++});
    for (int64_t backward = 0; backward < m; ++backward) {
      passes.push_back({PassKind::kBackward, rank, backward});
      if (forward < m) passes.push_back({PassKind::kForward, rank, forward++});
    }
  }
  return schedule;
}

}  // namespace muster::plan
