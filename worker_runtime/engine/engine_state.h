// What an engine holds, for the files that are its methods: engine.cc (set-up and the step),
// engine_update.cc (from reduced gradients to parameters), engine_checkpoint.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/engine.h"
#include "worker_runtime/engine/bucket_reducer.h"
#include "worker_runtime/engine/flat_state.h"
#include "worker_runtime/engine/gradient_sum.h"
#include "worker_runtime/plan/parameter_info.h"

namespace muster {

// Threads: as Engine.
struct Engine::State {
  State(Communicator& the_world, ParameterStore& the_store, Plan the_plan,
        const std::vector<plan::ParameterInfo>& parameters);

  void Mark(Phase phase) const {
    if (on_phase) on_phase(step, phase);
  }
  absl::Status RunMicroBatch(Forward forward, int64_t index, StepTimes& times);
  void RunBackward(const Loss& loss, bool is_last);
  absl::StatusOr<StepResult> Update(engine::LossSum total);
  void ApplyAdamW(double learning_rate, double gradient_scale);
  absl::Status CheckLoss(engine::LossSum total);
  absl::Status NormError() const;
  absl::StatusOr<std::string> ReadCheckpoint(const std::string& directory);

  // Constant after construction.
  Communicator& world;    // outlives the engine: the caller's
  ParameterStore& store;  // outlives the engine: the caller's
  const Plan plan;
  std::string plan_hash;

  TensorPool pool;
  Tape tape{pool};
  engine::GradientSum sum;
  engine::FlatState flat;
  engine::BucketReducer reducer;
  std::vector<double> norm_partials;
  int64_t step = 0;
  bool own_loss_finite = true;
  std::function<void(int64_t step, Phase phase)> on_phase;
};

}  // namespace muster
