#include "worker_runtime/runtime/stop_gate.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "proto/base/mono_time.h"

namespace muster {

bool StopGate::ShouldStop(int64_t step) {
  const uint64_t next = WordOf(std::max<int64_t>(step, -1) + 1);
  uint64_t seen = word_.load(std::memory_order_relaxed);
  while ((seen & kAsk) == 0) {
    if (word_.compare_exchange_weak(seen, next)) return false;
  }
  base::MutexLock lock(mu_);
  while (stop_.is_stopping && !stop_.step.has_value()) {
    changed_.WaitUntil(mu_, MonoNow() + absl::Hours(1));
  }
  if (stop_.is_stopping && step >= *stop_.step) return true;
  word_ = next | (stop_.is_stopping ? kAsk : 0);
  return false;
}

std::optional<int64_t> StopGate::Hear(StopState stop) {
  base::MutexLock lock(mu_);
  stop_ = std::move(stop);
  changed_.NotifyAll();
  if (!stop_.is_stopping) {
    word_.fetch_and(~kAsk);
    return std::nullopt;
  }
  const int64_t begun = BegunOf(word_.fetch_or(kAsk));
  if (stop_.step.has_value()) return std::nullopt;
  return begun;
}

void StopGate::HearNoMore() {
  base::MutexLock lock(mu_);
  if (stop_.step.has_value()) return;
  stop_ = {};
  word_.fetch_and(~kAsk);
  changed_.NotifyAll();
}

std::string StopGate::reason() const {
  base::MutexLock lock(mu_);
  return stop_.reason;
}

}  // namespace muster
