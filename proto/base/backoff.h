// Exponential back-off as a value: the caller keeps the attempt number and the timer.
#pragma once

#include <algorithm>
#include <cmath>

#include "absl/time/time.h"

namespace muster {

struct BackoffOptions {
  absl::Duration initial = absl::Milliseconds(50);
  double factor = 2.0;
  absl::Duration max = absl::Seconds(5);
};

// The pause before attempt `attempt` (0 = the first retry). `jitter` in [0, 1) spreads many callers
// over the upper half of the pause; pass 1 - epsilon for none.
//
// Threads: pure.
inline absl::Duration ComputeBackoff(const BackoffOptions& options, int attempt, double jitter) {
  const double scale = std::pow(options.factor, std::min(attempt, 30));
  const absl::Duration full = std::min(options.initial * scale, options.max);
  return full * (0.5 + 0.5 * jitter);
}

}  // namespace muster
