// Ranges of the fields of a plan, and the learning rate of a step.
#include "muster/plan.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/plan_text.h"

namespace muster {
namespace {

using plan::ExactText;

// Bounds above which a number is surely a mistake and products might not fit 64 bits.
constexpr int64_t kMostSteps = int64_t{1} << 48;
constexpr int64_t kMostMicroBatches = int64_t{1} << 20;
constexpr int64_t kMostBucketBytes = int64_t{1} << 40;
constexpr double kHighestLearningRate = 1e6;

absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("plan: ", field, " must be ", expected, ", not ", value));
}

absl::Status CheckInteger(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (low <= value && value <= high) return absl::OkStatus();
  return Bad(field, absl::StrCat(value), absl::StrCat("between ", low, " and ", high));
}

// Comparisons are written so that NaN fails.
absl::Status CheckNotNegative(absl::string_view field, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return Bad(field, ExactText(value), "a finite number, 0 or more");
}

absl::Status CheckPositive(absl::string_view field, double value) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return Bad(field, ExactText(value), "a finite number above 0");
}

absl::Status CheckBeta(absl::string_view field, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return Bad(field, ExactText(value), "at least 0 and below 1");
}

// Printed as one line, so that texts of plans compare line by line.
absl::Status CheckPresetName(const std::string& name) {
  bool printable = !name.empty();
  for (const char c : name) printable = printable && absl::ascii_isgraph(c);
  if (printable) return absl::OkStatus();
  return Bad("preset", absl::StrCat("'", absl::Utf8SafeCHexEscape(name), "'"),
             "a name of letters, digits and signs without spaces");
}

absl::Status CheckTypes(const Plan& plan) {
  const auto is = [](const StatePlan& state, std::initializer_list<DType> types) {
    return !state.dtype || std::find(types.begin(), types.end(), *state.dtype) != types.end();
  };
  if (plan.parameters.dtype) {
    return Bad("parameters.dtype", ToString(*plan.parameters.dtype),
               "left out: it is that of the parameter store");
  }
  if (!is(plan.gradients, {DType::kF64, DType::kF32, DType::kBf16, DType::kF16})) {
    return Bad("gradients.dtype", ToString(*plan.gradients.dtype), "f64, f32, bf16 or f16");
  }
  if (!is(plan.optimizer, {DType::kF64, DType::kF32})) {
    return Bad("optimizer.dtype", ToString(*plan.optimizer.dtype), "f64 or f32");
  }
  return absl::OkStatus();
}

absl::Status CheckPlacements(const Plan& plan) {
  const auto is_sharded = [](const StatePlan& state) {
    return state.placement == Placement::kShard;
  };
  const bool any_shard = is_sharded(plan.parameters) || is_sharded(plan.gradients);
  if (any_shard && !is_sharded(plan.optimizer)) {
    const absl::string_view sharded = is_sharded(plan.parameters) ? "parameters" : "gradients";
    return Bad("optimizer.placement", ToString(plan.optimizer.placement),
               absl::StrCat("shard where the ", sharded,
                            " are sharded: a rank updates only what it holds"));
  }
  if (plan.reshard_after_forward && !is_sharded(plan.parameters)) {
    return Bad("reshard_after_forward", "true",
               "false where the parameters are replicated: there is nothing to gather");
  }
  return absl::OkStatus();
}

absl::Status CheckBuckets(const Plan& plan) {
  MUSTER_RETURN_IF_ERROR(
      CheckInteger("bucket_bytes_max", plan.bucket_bytes_max, 1, kMostBucketBytes));
  return CheckInteger("first_bucket_bytes", plan.first_bucket_bytes, 1, kMostBucketBytes);
}

absl::Status CheckAdamW(const AdamWOptions& adamw) {
  MUSTER_RETURN_IF_ERROR(CheckBeta("adamw.beta1", adamw.beta1));
  MUSTER_RETURN_IF_ERROR(CheckBeta("adamw.beta2", adamw.beta2));
  MUSTER_RETURN_IF_ERROR(CheckPositive("adamw.epsilon", adamw.epsilon));
  return CheckNotNegative("adamw.weight_decay", adamw.weight_decay);
}

absl::Status CheckSchedule(const LearningRateSchedule& schedule) {
  if (!(schedule.peak >= 0 && schedule.peak <= kHighestLearningRate)) {
    return Bad("learning_rate.peak", ExactText(schedule.peak),
               absl::StrCat("between 0 and ", kHighestLearningRate));
  }
  if (!(schedule.floor >= 0 && schedule.floor <= schedule.peak)) {
    return Bad("learning_rate.floor", ExactText(schedule.floor),
               absl::StrCat("between 0 and the peak, which is ", ExactText(schedule.peak)));
  }
  MUSTER_RETURN_IF_ERROR(
      CheckInteger("learning_rate.warmup_steps", schedule.warmup_steps, 0, kMostSteps));
  MUSTER_RETURN_IF_ERROR(
      CheckInteger("learning_rate.total_steps", schedule.total_steps, 0, kMostSteps));
  const bool falls = schedule.kind != LearningRateSchedule::Kind::kConstant;
  if (falls && schedule.total_steps <= schedule.warmup_steps) {
    return Bad("learning_rate.total_steps", absl::StrCat(schedule.total_steps),
               absl::StrCat("more than the ", schedule.warmup_steps, " steps of warm-up, since a ",
                            ToString(schedule.kind), " schedule falls after them"));
  }
  return absl::OkStatus();
}

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

absl::Status Plan::Validate() const {
  MUSTER_RETURN_IF_ERROR(CheckPresetName(preset));
  MUSTER_RETURN_IF_ERROR(CheckPlacements(*this));
  MUSTER_RETURN_IF_ERROR(CheckTypes(*this));
  MUSTER_RETURN_IF_ERROR(CheckInteger("accumulation", accumulation, 1, kMostMicroBatches));
  MUSTER_RETURN_IF_ERROR(CheckBuckets(*this));
  MUSTER_RETURN_IF_ERROR(CheckAdamW(adamw));
  MUSTER_RETURN_IF_ERROR(CheckSchedule(learning_rate));
  return CheckNotNegative("max_gradient_norm", max_gradient_norm);
}

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
