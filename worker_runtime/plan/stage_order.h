// The order in which the ranks of a pipeline work under a plan, and what each of them hands to
// others, in one order on both sides of every way between two ranks.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/plan.h"
#include "worker_runtime/plan/program.h"
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

// A stage that uses parameters of an earlier one, and hands their gradient to it with every
// micro-batch from the first such on.
struct TiedStages {
  int borrower = 0;
  int lender = 0;
  int64_t first_micro_batch = 0;
};

// What stages hand on, and the rank of the pipeline that it comes from or goes to.
struct HandedBy {
  Handed what;
  int place = 0;
  friend bool operator==(const HandedBy&, const HandedBy&) = default;
};

// A pass of one rank, and what travels before and after it. Receives come in the order in which the
// other rank sends, so that some are of later passes.
struct PassOfRank {
  StagePass pass;
  std::vector<HandedBy> receives;  // started before the pass
  std::vector<Handed> needs;       // of what is received: the pass waits for it
  std::vector<HandedBy> sends;     // once the pass is done
  // The rank has the stage behind, or before, too: what the pass makes for it stays where it is.
  bool keeps = false;
};

// The passes of the rank at `place`.
std::vector<PassOfRank> PassesOf(const Schedule& schedule, absl::Span<const TiedStages> tied,
                                 int place);

}  // namespace muster::plan
