// Who is told of what an engine does as it does it.
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

namespace muster::engine {

struct StepListeners {
  std::function<void(int64_t step, Phase phase)> on_phase;
  std::function<void(const TimedAction&)> on_action;

  // `describe` is called only where somebody listens.
  void Tell(TimedAction::Lane lane, int64_t step, MonoTime begin, MonoTime end,
            absl::FunctionRef<std::string()> describe) const {
    if (!on_action) return;
    on_action({.lane = lane,
               .what = describe(),
               .step = step,
               .began = absl::Now() - (MonoNow() - begin),
               .took = end - begin});
  }
};

}  // namespace muster::engine
