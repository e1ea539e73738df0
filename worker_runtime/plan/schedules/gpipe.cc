// GPipe: all forward passes of a step, then all of its backward passes.
#include <numeric>

#include "proto/base/status_macros.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {

absl::StatusOr<Schedule> GPipe(const ScheduleShape& shape) {
  MUSTER_RETURN_IF_ERROR(CheckOneStagePerRank("gpipe", shape));
  Schedule schedule = {.name = "gpipe", .micro_batches = shape.micro_batches};
  schedule.rank_of_stage.resize(shape.ranks);
  std::iota(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), 0);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    std::vector<StagePass>& passes = schedule.passes.emplace_back();
    for (const PassKind kind : {PassKind::kForward, PassKind::kBackward}) {
      for (int64_t m = 0; m < shape.micro_batches; ++m) passes.push_back({kind, rank, m});
    }
  }
  return schedule;
}

}  // namespace muster::plan
