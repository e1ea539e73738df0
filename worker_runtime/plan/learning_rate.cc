#include <algorithm>
#include <cmath>

#include "muster/plan.h"

namespace muster {
namespace {

// What is left of the fall from peak to floor: 1 at its start, 0 at its end.
double Remaining(const LearningRateSchedule& schedule, int64_t step) {
  constexpr double kPi = 3.14159265358979323846;
  const int64_t length = schedule.total_steps - schedule.warmup_steps;
  const int64_t gone = step - schedule.warmup_steps;
  if (schedule.kind == LearningRateSchedule::Kind::kConstant) return 1;
  if (gone >= length) return 0;
  const double progress = static_cast<double>(gone) / static_cast<double>(length);
  if (schedule.kind == LearningRateSchedule::Kind::kLinear) return 1 - progress;
  return 0.5 * (1 + std::cos(kPi * progress));
}

}  // namespace

double LearningRate(const LearningRateSchedule& schedule, int64_t step) {
  if (step < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step + 1) /
           static_cast<double>(schedule.warmup_steps);
  }
  const double remaining = Remaining(schedule, step);
  if (remaining == 1) return schedule.peak;  // exactly, whatever the rounding below
  return schedule.floor + (schedule.peak - schedule.floor) * remaining;
}

}  // namespace muster
