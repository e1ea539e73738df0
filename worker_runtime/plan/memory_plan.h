// How much memory training takes on each rank.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "muster/dtype.h"
#include "muster/gpt_config.h"
#include "muster/plan.h"

namespace muster::plan {

struct Workload {
  int64_t world_size = 1;
  int64_t batch_size = 1;  // sequences per rank and micro-batch, of the model's whole context
  DType dtype = DType::kF32;
};

// Bytes on the rank that needs most. What the engine reports as EngineMemory; the communicator's
// buffers and the program itself are not counted.
struct MemoryPlan {
  int64_t parameters = 0;
  int64_t gradients = 0;     // of the running step
  int64_t partial_sums = 0;  // of ordered mode, beside them (ordered_sums.h)
  int64_t optimizer = 0;     // both moments
  int64_t activations = 0;   // at their peak
  int64_t total() const { return parameters + gradients + partial_sums + optimizer + activations; }
};

// `plan` and `model` are valid, world_size and batch_size at least 1.
//
// Errors: kInvalidArgument: more than 2^60 bytes; kUnimplemented: a placement or residency that
//         this version has not.
absl::StatusOr<MemoryPlan> PlanMemory(const Plan& plan, const GptConfig& model,
                                      const Workload& workload);

}  // namespace muster::plan
