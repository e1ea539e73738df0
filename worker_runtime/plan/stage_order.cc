#include "worker_runtime/plan/stage_order.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/field_checks.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {
namespace {

// The schedule that a plan has itself, and not by name.
std::optional<Schedule> OwnSchedule(const Plan& plan) {
  if (!IsScheduleText(plan.schedule)) return std::nullopt;
  absl::StatusOr<Schedule> read = ParseSchedule(plan.schedule);
  return read.ok() ? std::optional(*std::move(read)) : std::nullopt;
}

}  // namespace

int StagesPerRank(const Plan& plan) {
  return plan.stages_per_rank == 0 ? UsualStagesPerRank(plan.schedule)
                                   : static_cast<int>(plan.stages_per_rank);
}

int StagesOver(const Plan& plan, int ranks) {
  if (ranks == 1) return 1;
  const std::optional<Schedule> own = OwnSchedule(plan);
  return own ? own->num_stages() : ranks * StagesPerRank(plan);
}

int RanksOf(const Plan& plan, int stages) {
  if (stages == 1) return 1;
  const std::optional<Schedule> own = OwnSchedule(plan);
  const bool is_own = own && own->num_stages() == stages;
  return is_own ? own->num_ranks() : stages / StagesPerRank(plan);
}

absl::Status CheckStagesPerRank(const Plan& plan) {
  if (plan.stages != 1 || plan.stages_per_rank <= 1) return absl::OkStatus();
  return Bad("stages_per_rank", absl::StrCat(plan.stages_per_rank),
             "1 where there is one stage, which is not a pipeline");
}

absl::StatusOr<Schedule> ScheduleOf(const Plan& plan, int ranks) {
  ScheduleShape shape = {.ranks = ranks, .micro_batches = plan.accumulation};
  if (ranks > 1) {
    const bool is_own = plan.stages_per_rank == 0 && IsScheduleText(plan.schedule);
    shape.stages_per_rank = is_own ? kStagesOfText : StagesPerRank(plan);
  }
  // It takes however many micro-batches.
  if (ranks == 1 || plan.schedule == Plan().schedule) return OneForwardOneBackward(shape);
  return MakeSchedule(plan.schedule, shape);
}

std::vector<int> StagesAt(const Schedule& schedule, int place) {
  std::vector<int> stages;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    if (schedule.rank_of_stage[stage] == place) stages.push_back(stage);
  }
  return stages;
}

bool SplitsBackward(const Schedule& schedule) {
  const auto is_part = [](const StagePass& pass) {
    return pass.kind == PassKind::kInputGradient || pass.kind == PassKind::kWeightGradient;
  };
  return std::any_of(schedule.passes.begin(), schedule.passes.end(), [&](const auto& of_rank) {
    return std::any_of(of_rank.begin(), of_rank.end(), is_part);
  });
}

bool SplitsBackward(const Plan& plan) {
  if (plan.stages == 1) return false;
  if (IsScheduleText(plan.schedule)) {
    const std::optional<Schedule> own = OwnSchedule(plan);
    return own && SplitsBackward(*own);
  }
  Plan smallest = plan;
  smallest.accumulation = 1;
  const absl::StatusOr<Schedule> schedule = ScheduleOf(smallest, 2);
  return schedule.ok() && SplitsBackward(*schedule);
}

}  // namespace muster::plan
