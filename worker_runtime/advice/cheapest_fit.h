// What to change where a plan needs more memory than there is, found by trying.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker_runtime/advice/plan_job.h"
#include "worker_runtime/plan/plan_options.h"

namespace muster::advice {

struct CheapestFit {
  std::string options;       // "--plan=zero-1 --recompute=full"; empty: nothing that was tried fits
  int64_t memory_bytes = 0;  // that a rank takes with them; of none: with what takes least
};

// Tries plans that shard more, recomputation, smaller micro-batches of as many sequences in all, 16
// bits, and then more ranks: the change that costs least time comes first.
CheapestFit FindCheapestFit(const plan::PlanOptions& options, const JobShape& shape,
                            int64_t memory_bytes_max);

// Whether a rank of `job` takes at most `memory_bytes_max`. Errors: kInvalidArgument: it takes more
// (how much, and what is the cheapest change that fits).
absl::Status CheckFits(const plan::PlanPageInput& job, const plan::PlanOptions& options,
                       const JobShape& shape, int64_t memory_bytes_max);

}  // namespace muster::advice
