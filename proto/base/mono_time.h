// Monotonic time. Wall-clock time exists only where people read it (logs, failure reports).
#pragma once

#include <chrono>
#include <compare>

#include "absl/time/time.h"

namespace muster {

// An instant on one machine's monotonic clock. Instants of two machines are never compared: what
// crosses the network is a duration (an age, or what is left until a deadline).
class MonoTime {
 public:
  constexpr MonoTime() = default;

  static MonoTime InfiniteFuture() { return MonoTime(absl::InfiniteDuration()); }
  // An instant `since_start` after an arbitrary zero, for tests and simulations.
  static MonoTime At(absl::Duration since_start) { return MonoTime(since_start); }

  friend MonoTime operator+(MonoTime t, absl::Duration d) { return MonoTime(t.since_zero_ + d); }
  friend MonoTime operator-(MonoTime t, absl::Duration d) { return MonoTime(t.since_zero_ - d); }
  friend absl::Duration operator-(MonoTime a, MonoTime b) { return a.since_zero_ - b.since_zero_; }
  friend bool operator==(MonoTime a, MonoTime b) { return a.since_zero_ == b.since_zero_; }
  friend bool operator<(MonoTime a, MonoTime b) { return a.since_zero_ < b.since_zero_; }
  friend bool operator>(MonoTime a, MonoTime b) { return b < a; }
  friend bool operator<=(MonoTime a, MonoTime b) { return !(b < a); }
  friend bool operator>=(MonoTime a, MonoTime b) { return !(a < b); }

  bool is_infinite() const { return since_zero_ == absl::InfiniteDuration(); }
  absl::Duration since_zero() const { return since_zero_; }

 private:
  constexpr explicit MonoTime(absl::Duration since_zero) : since_zero_(since_zero) {}
  absl::Duration since_zero_ = absl::ZeroDuration();
};

inline MonoTime Min(MonoTime a, MonoTime b) { return b < a ? b : a; }

// A shell's only source of time; simulations and tests pass their own instants to cores instead.
inline MonoTime MonoNow() {
  return MonoTime::At(absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()));
}

}  // namespace muster
