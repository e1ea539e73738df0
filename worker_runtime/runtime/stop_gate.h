// The gate at which a program asks, after each step, whether the job stops, and at which its
// agent's word on that arrives, on the thread that reads it.
//
// A job stops at one step, the same on all ranks, agreed without a collective: every rank says the
// furthest step that it has begun and promises to begin none beyond; the largest of these is named;
// ranks that are behind go on to it. The word must be given from the middle of a step too, because
// there a rank may be waiting for ranks that already hold. So the step begun and the question are
// one atomic word, and either the program sees the question before it begins a step, or the answer
// has that step.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "proto/base/condition.h"
#include "proto/base/mutex.h"
#include "proto/base/stop_state.h"

namespace muster {

// Threads: one asks (ShouldStop), one hears (Hear); `reason` is for any.
class StopGate {
 public:
  // Asked after `step` was finished (negative: before the first). False: go on with the next. Waits
  // while a stop has no step yet.
  //
  // Cost: one atomic exchange while there is no stop.
  bool ShouldStop(int64_t step);

  // Takes what the agent says. Returns the step to answer a stop with that has no step yet: the
  // furthest that the program has begun, and it will begin no other until it hears more.
  std::optional<int64_t> Hear(StopState stop);

  // The agent is gone: a step that was named stays, else there is no stop.
  void HearNoMore();

  // Why ShouldStop said yes; empty before.
  std::string reason() const;

 private:
  // The furthest step begun, plus 1, above one bit that sends the program to mu_.
  static constexpr uint64_t kAsk = 1;
  static uint64_t WordOf(int64_t begun) { return static_cast<uint64_t>(begun + 1) << 1; }
  static int64_t BegunOf(uint64_t word) { return static_cast<int64_t>(word >> 1) - 1; }

  std::atomic<uint64_t> word_ = 0;

  mutable base::Mutex mu_;
  base::Condition changed_;
  StopState stop_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
