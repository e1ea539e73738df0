// Makes of options what a plan page shows: the model is built, cut and run without any memory, or
// counted by arithmetic where it can only be planned.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/device.h"
#include "worker_runtime/plan/plan_options.h"
#include "worker_runtime/plan/plan_page.h"

namespace muster::advice {

struct JobShape {
  int64_t world_size = 1;
  int64_t ranks_of_node = 0;  // 0: all, or 8 where there are more
  // The device that will train knows what its libraries work in. Null: one is planned as the
  // options have it.
  const Device* device = nullptr;
};

// `options` are finished (plan::FinishPlanOptions); their batch is spread over the ranks here.
//
// Errors: kInvalidArgument: the plan is wrong for so many ranks, the model cannot be cut, sizes
//         cannot be counted, or the batch equation does not hold.
absl::StatusOr<plan::PlanPageInput> PlanJob(plan::PlanOptions options, const JobShape& shape);

// Whether states can rest where they are to, on this device. Errors: kUnimplemented: the reason,
// and the memory of a GPU that is missing for it.
absl::Status CheckOffload(const plan::PlanPageInput& job);

}  // namespace muster::advice
