// How far a training is: what its state has beside arrays.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/plan.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/plan/loss_scaler.h"

namespace muster::engine {

// Threads: thread-compatible.
struct TrainingProgress {
  explicit TrainingProgress(const LossScaling& scaling) : scaler(scaling) {}

  // Updates that the optimizer has made.
  int64_t updates() const { return step - skipped_steps; }
  // Step and counters, as a checkpoint has them.
  checkpoint::TrainingState Save() const;
  // This one as `saved` has it. `name`: of what was saved, for people.
  //
  // Errors: kInvalidArgument: the counters are damaged.
  absl::StatusOr<TrainingProgress> Read(const checkpoint::TrainingState& saved,
                                        const std::string& name) const;

  // Errors: kFailedPrecondition: the state is of no step.
  absl::Status CheckWhole() const;

  int64_t step = 0;           // taken: each has consumed its batches
  int64_t skipped_steps = 0;  // of them, those that changed nothing
  plan::LossScaler scaler;
  // A step that failed has changed parameters or optimizer, or a load did: they are of no step.
  bool is_torn = false;
};

}  // namespace muster::engine
