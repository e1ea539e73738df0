// One rank with all that has to do with its state, without an engine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "tests/unit/worker_runtime/engine/small_rig.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"
#include "worker_runtime/engine/checkpoints.h"
#include "worker_runtime/engine/state_keeper.h"
#include "worker_runtime/engine/units_alone.h"
#include "worker_runtime/engine/updater.h"

namespace muster::testing {

struct Kept {
  explicit Kept(Communicator& world, uint64_t seed = 0, CheckpointFence fence = {},
                const Plan& plan = SmallPlan(SumMode::kOrdered, 1))
      : small(world, WithSeed(plan, seed)),
        checkpoints(small.rig(), progress, updater, alone, listeners, std::move(fence)) {}

  static Plan WithSeed(Plan plan, uint64_t seed) {
    plan.seed = seed;
    return plan;
  }
  std::string Hash() { return keeper.HashParameters().value_or("none"); }

  SmallRig small;
  engine::TrainingProgress progress{small.rig().plan.loss_scaling};
  engine::StepListeners listeners{.progress = progress};
  engine::Updater updater{small.rig(), progress};
  engine::UnitsAlone alone{small.rig()};
  engine::StateKeeper keeper{small.rig(), progress, updater, alone, listeners};
  engine::Checkpoints checkpoints;
};

}  // namespace muster::testing
