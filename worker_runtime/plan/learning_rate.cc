// The learning rate of an update: PyTorch's schedules after a warm-up, and DeepSpeed's.
#include <algorithm>
#include <cmath>

#include "muster/update.h"

namespace muster {
namespace {

using Kind = LearningRateSchedule::Kind;

// What is left of the fall from peak to floor: 1 at its start, 0 at its end.
//
// Source: torch.optim.lr_scheduler.LinearLR and CosineAnnealingLR, in closed form.
double Remaining(const LearningRateSchedule& schedule, int64_t step) {
  constexpr double kPi = 3.14159265358979323846;
  const int64_t length = schedule.total_steps - schedule.warmup_steps;
  const int64_t gone = step - schedule.warmup_steps;
  if (schedule.kind == Kind::kConstant) return 1;
  if (gone >= length) return 0;
  const double progress = static_cast<double>(gone) / static_cast<double>(length);
  if (schedule.kind == Kind::kLinear) return 1 - progress;
  return 0.5 * (1 + std::cos(kPi * progress));
}

// How far the rate is from floor to peak. `step` counts the updates that were made before the
// schedule moved last: the first update of all comes before it moves.
//
// Source: DeepSpeed, WarmupLR and WarmupDecayLR.
double DeepSpeedGamma(const LearningRateSchedule& schedule, int64_t step) {
  const int64_t warmup = std::max<int64_t>(2, schedule.warmup_steps);
  if (step < warmup) {
    if (schedule.rise == LearningRateSchedule::Rise::kLinear) {
      return static_cast<double>(step) / static_cast<double>(warmup);
    }
    return 1 / std::log(static_cast<double>(warmup)) * std::log(static_cast<double>(step + 1));
  }
  if (schedule.kind == Kind::kWarmup) return 1;
  const double left = static_cast<double>(schedule.total_steps - step);
  return std::max(0.0, left / std::max(1.0, static_cast<double>(schedule.total_steps - warmup)));
}

}  // namespace

absl::string_view ToString(LearningRateSchedule::Kind kind) {
  switch (kind) {
    case Kind::kConstant:
      return "constant";
    case Kind::kLinear:
      return "linear";
    case Kind::kCosine:
      return "cosine";
    case Kind::kWarmup:
      return "warmup";
    case Kind::kWarmupDecay:
      return "warmup_decay";
  }
  return "?";
}

absl::string_view ToString(LearningRateSchedule::Rise rise) {
  return rise == LearningRateSchedule::Rise::kLog ? "log" : "linear";
}

double LearningRate(const LearningRateSchedule& schedule, int64_t step) {
  if (schedule.kind == Kind::kWarmup || schedule.kind == Kind::kWarmupDecay) {
    if (step == 0) return schedule.floor;
    return schedule.floor + (schedule.peak - schedule.floor) * DeepSpeedGamma(schedule, step - 1);
  }
  if (step < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step + 1) /
           static_cast<double>(schedule.warmup_steps);
  }
  const double remaining = Remaining(schedule, step);
  if (remaining == 1) return schedule.peak;  // exactly, whatever the rounding below
  return schedule.floor + (schedule.peak - schedule.floor) * remaining;
}

}  // namespace muster
