// What `muster plan` prints: what a training job does and what it costs, before anything runs.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/parameter_info.h"
#include "worker_runtime/plan/plan_options.h"

namespace muster::plan {

struct PlanPageInput {
  PlanOptions options;
  int64_t world_size = 1;
  int64_t ranks_of_node = 1;  // that share a machine
  // That each rank's GPU takes for itself, and of the host, pinned, at most; 0: there are none.
  int64_t gpu_bytes = 0;
  int64_t pinned_bytes_max = 0;
  std::string hash;  // of CanonicalText; what the engine compares between ranks
  // Of the model that options.model describes: its units, their parameters, and what a micro-batch does
  // to them and to memory in each stage (engine/cut_model.h). [stages] divides world_size.
  std::vector<std::string> unit_names;
  std::vector<ParameterInfo> parameters;
  std::vector<StageInfo> stages;

  int64_t replicas() const { return world_size / static_cast<int64_t>(stages.size()); }
};

// Three digits and a unit: "1.21 GiB".
std::string ReadableBytes(int64_t bytes);

// Lines of text: model, plan, step, stages of a pipeline, memory per rank, buckets, bytes sent.
//
// Errors: kInvalidArgument: more tokens than can be counted.
absl::StatusOr<std::string> FormatPlanPage(const PlanPageInput& input);

}  // namespace muster::plan
