// The listeners that are told of what an engine does as it does it.
//
// Threads: compatible; listeners are called on the thread of Step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "muster/engine.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/engine/training_progress.h"

namespace muster::engine {

struct StepListeners {
  void Mark(Phase phase) const {
    if (on_phase) on_phase(progress.step, phase);
  }
  // `is_taken`: the step under way counts already. `describe` is called only where somebody
  // listens.
  void Tell(TimedAction::Lane lane, bool is_taken, MonoTime begin, MonoTime end,
            absl::FunctionRef<std::string()> describe) const {
    if (!on_action) return;
    on_action({.lane = lane,
               .what = describe(),
               .step = is_taken ? progress.step : progress.step + 1,
               .began = absl::Now() - (MonoNow() - begin),
               .took = end - begin});
  }

  const TrainingProgress& progress;  // outlives this
  std::function<void(int64_t step, Phase phase)> on_phase;
  std::function<void(const TimedAction&)> on_action;
};

}  // namespace muster::engine
