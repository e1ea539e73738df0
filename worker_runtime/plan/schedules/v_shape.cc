#include "worker_runtime/plan/schedules/v_shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::plan {

void PassesOfV::Add(PassKind kind, Way way) {
  const int64_t micro_batch = count_[static_cast<size_t>(way)][static_cast<size_t>(kind)]++;
  if (micro_batch >= shape_.micro_batches) return;
  const int stage = way == Way::kDown ? rank_ : 2 * shape_.ranks - 1 - rank_;
  passes_.push_back({kind, stage, micro_batch});
}

absl::StatusOr<Schedule> ScheduleOfV(absl::string_view name, const ScheduleShape& shape,
                                     absl::FunctionRef<void(int rank, PassesOfV& passes)> pass) {
  if (shape.stages_per_rank != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has two stages per rank, and ", shape.stages_per_rank,
                     shape.stages_per_rank == 1 ? " is asked for; zb-h1 has one"
                                                : " are asked for; interleaved has as many"));
  }
  Schedule schedule = {.name = std::string(name), .micro_batches = shape.micro_batches};
  for (int stage = 0; stage < 2 * shape.ranks; ++stage) {
    schedule.rank_of_stage.push_back(std::min(stage, 2 * shape.ranks - 1 - stage));
  }
  for (int rank = 0; rank < shape.ranks; ++rank) {
    PassesOfV passes(shape, rank);
    pass(rank, passes);
    schedule.passes.push_back(passes.Take());
  }
  return schedule;
}

}  // namespace muster::plan
