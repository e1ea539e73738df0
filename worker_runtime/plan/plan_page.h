// What `muster plan` prints: what a training job does and what it costs, before anything runs.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/plan/plan_options.h"

namespace muster::plan {

struct PlanPageInput {
  PlanOptions options;
  int64_t world_size = 1;
  std::string hash;  // of CanonicalText; what the engine compares between ranks
};

// Lines of text: model, plan, step, memory per rank, buckets, bytes sent.
//
// Errors: kInvalidArgument: more tokens or bytes than can be counted.
absl::StatusOr<std::string> FormatPlanPage(const PlanPageInput& input);

}  // namespace muster::plan
