// The schedule of a pipeline that a plan asks for.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/plan.h"
#include "worker_runtime/plan/schedules/schedule.h"

namespace muster::plan {

// Stages that each rank of a pipeline has in turn, at most. A schedule that nobody knows has one.
int StagesPerRank(const Plan& plan);
// Stages that a model is cut into over so many ranks, and the ranks of so many stages.
int StagesOver(const Plan& plan, int ranks);
int RanksOf(const Plan& plan, int stages);

// Errors: kInvalidArgument: ranks are to have several stages, and there is one.
absl::Status CheckStagesPerRank(const Plan& plan);

// The schedule of a pipeline over so many ranks, each of which stands for its replicas. One rank is
// no pipeline: it has the whole model, and goes backward after each forward pass.
//
// Errors: kInvalidArgument: plan.schedule is not known, or has no order for so many ranks, stages
// and micro-batches (MakeSchedule); says what does.
absl::StatusOr<Schedule> ScheduleOf(const Plan& plan, int ranks);

// The stages of a rank of the pipeline, ascending.
std::vector<int> StagesAt(const Schedule& schedule, int place);

// Whether a backward pass is two in it.
bool SplitsBackward(const Schedule& schedule);
// The same of a plan's schedule, over however many ranks.
bool SplitsBackward(const Plan& plan);

}  // namespace muster::plan
