// The parts of an engine, in the order in which they know of each other, and what a step asks of
// several of them.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/engine.h"
#include "worker_runtime/engine/batch_feed.h"
#include "worker_runtime/engine/captured_steps.h"
#include "worker_runtime/engine/checkpoints.h"
#include "worker_runtime/engine/registered_memory.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/state_keeper.h"
#include "worker_runtime/engine/step_listeners.h"
#include "worker_runtime/engine/step_runner.h"
#include "worker_runtime/engine/training_progress.h"
#include "worker_runtime/engine/units_alone.h"
#include "worker_runtime/engine/updater.h"

namespace muster {

// Threads: as Engine.
struct Engine::State {
  State(std::unique_ptr<engine::Rig> the_rig, EngineOptions options);
  ~State();

  // `from_reader`: on the batches of the feed.
  absl::StatusOr<StepResult> RunStep(engine::PassForward forward, bool from_reader = false);
  // The first step has shown in which order gradients come.
  absl::Status LearnOrder();
  // An operation is about to use `parameter`.
  void Enter(const Parameter& parameter);
  // The model adds up over the tensor ranks.
  void AddUp(const Tensor& part);

  const std::unique_ptr<engine::Rig> rig;
  engine::TrainingProgress progress{rig->plan.loss_scaling};
  engine::StepListeners listeners{.progress = progress};
  engine::Updater updater{*rig, progress};
  engine::UnitsAlone alone{*rig};
  engine::BatchFeed feed{*rig, progress};
  engine::StepRunner runner;
  engine::RegisteredMemory registered;
  engine::CapturedSteps captured;
  engine::StateKeeper keeper{*rig, progress, updater, alone, listeners};
  engine::Checkpoints checkpoints;
};

}  // namespace muster
