#include "rendezvous/hangs/judge/hang_limits.h"

#include <algorithm>
#include <optional>

namespace muster::hangs {
namespace {

constexpr double kSoftFactor = 3;
constexpr double kHardFactor = 5;
// Phases that take long by intention: what they may take more than a step.
constexpr double kLongPhase = 3;
constexpr absl::Duration kLongPhaseSoft = absl::Minutes(1);

bool IsLong(WatchPhase phase) {
  return phase == WatchPhase::kStart || phase == WatchPhase::kEvaluation ||
         phase == WatchPhase::kCheckpoint || phase == WatchPhase::kEnd;
}

}  // namespace

absl::Duration HangLimits::Soft(WatchPhase phase) const {
  const absl::Duration least = IsLong(phase) ? kLongPhaseSoft : kSoftMin;
  const std::optional<absl::Duration> usual = history_.Usual(phase);
  if (!usual) return least;
  return std::clamp(kSoftFactor * *usual, least, kSoftMax);
}

absl::Duration HangLimits::Hard(WatchPhase phase) const {
  const bool is_first = phase == WatchPhase::kFirstStep;
  const absl::Duration least =
      IsLong(phase) || is_first ? kLongPhase * hang_timeout_ : hang_timeout_;
  return std::max(least, kHardFactor * history_.Longest(phase));
}

}  // namespace muster::hangs
