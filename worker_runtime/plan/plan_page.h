// What `muster plan` prints: what a training job does and what it costs, before anything runs.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/plan/parameter_info.h"
#include "worker_runtime/plan/plan_options.h"
#include "worker_runtime/plan/use_trace.h"

namespace muster::plan {

struct PlanPageInput {
  PlanOptions options;
  int64_t world_size = 1;
  std::string hash;  // of CanonicalText; what the engine compares between ranks
  // Of the model that options.model describes: its parameters, and what a micro-batch does to them
  // and to memory (engine/meta_run.h).
  std::vector<ParameterInfo> parameters;
  UseTrace trace;
};

// Lines of text: model, plan, step, memory per rank, buckets, bytes sent.
//
// Errors: kInvalidArgument: more tokens than can be counted.
absl::StatusOr<std::string> FormatPlanPage(const PlanPageInput& input);

}  // namespace muster::plan
