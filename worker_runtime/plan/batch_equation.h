// sequences of a step = sequences of a micro-batch x micro-batches x ranks: what follows from what
// was said of it.
//
// Source:  DeepSpeed's _set_batch_related_parameters and _batch_assertion, with remainders refused
//         where it would round down.
// Threads: pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/plan/plan_options.h"

namespace muster::plan {

// What is 0 in `asked` is filled in; of micro-batch and accumulation, where neither is said,
// accumulation is 1. `asked.train` is not 0. `replicas`: ranks that work on different sequences.
//
// Errors: kInvalidArgument: the equation with its numbers, and the nearest that hold.
absl::StatusOr<BatchSizes> SolveBatch(const BatchSizes& asked, int64_t replicas);

// Puts the solution into options.batch_size and options.plan.accumulation, where
// options.asked.train says how large a step is. Errors: SolveBatch's.
absl::Status SpreadBatch(PlanOptions& options, int64_t replicas);

}  // namespace muster::plan
