#include "muster/plan.h"

#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

// Bounds above which a number is surely a mistake and products might not fit 64 bits.
constexpr int64_t kMostSteps = int64_t{1} << 48;
constexpr int64_t kMostMicroBatches = int64_t{1} << 20;
constexpr int64_t kMostBucketBytes = int64_t{1} << 40;
constexpr double kHighestLearningRate = 1e6;

// The shortest text that reads back as the same number.
std::string ExactText(double value) {
  char text[32];
  value += 0.0;  // -0 is 0
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

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
  if (plan.gather_again && !is_sharded(plan.parameters)) {
    return Bad("gather_again", "true",
               "false where the parameters are replicated: there is nothing to gather");
  }
  return absl::OkStatus();
}

absl::Status CheckBuckets(const Plan& plan) {
  MUSTER_RETURN_IF_ERROR(
      CheckInteger("bucket_bytes_max", plan.bucket_bytes_max, 1, kMostBucketBytes));
  return CheckInteger("first_bucket_bytes_max", plan.first_bucket_bytes_max, 1, kMostBucketBytes);
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

void DescribeState(absl::string_view name, const StatePlan& state, PlanText& text) {
  text.emplace_back(absl::StrCat(name, ".placement"), ToString(state.placement));
  text.emplace_back(absl::StrCat(name, ".residency"), ToString(state.residency));
}

std::string Text(bool value) { return value ? "true" : "false"; }

}  // namespace

absl::string_view ToString(Placement placement) {
  switch (placement) {
    case Placement::kReplicate:
      return "replicate";
    case Placement::kShard:
      return "shard";
  }
  return "?";
}

absl::string_view ToString(Residency residency) {
  switch (residency) {
    case Residency::kDevice:
      return "device";
    case Residency::kCpu:
      return "cpu";
    case Residency::kNvme:
      return "nvme";
  }
  return "?";
}

absl::string_view ToString(SumMode mode) {
  switch (mode) {
    case SumMode::kFast:
      return "fast";
    case SumMode::kOrdered:
      return "ordered";
  }
  return "?";
}

absl::string_view ToString(LearningRateSchedule::Kind kind) {
  switch (kind) {
    case LearningRateSchedule::Kind::kConstant:
      return "constant";
    case LearningRateSchedule::Kind::kLinear:
      return "linear";
    case LearningRateSchedule::Kind::kCosine:
      return "cosine";
  }
  return "?";
}

absl::Status Plan::Validate() const {
  MUSTER_RETURN_IF_ERROR(CheckPresetName(preset));
  MUSTER_RETURN_IF_ERROR(CheckPlacements(*this));
  MUSTER_RETURN_IF_ERROR(CheckInteger("accumulation", accumulation, 1, kMostMicroBatches));
  MUSTER_RETURN_IF_ERROR(CheckBuckets(*this));
  MUSTER_RETURN_IF_ERROR(CheckAdamW(adamw));
  MUSTER_RETURN_IF_ERROR(CheckSchedule(learning_rate));
  return CheckNotNegative("gradient_norm_max", gradient_norm_max);
}

PlanText Describe(const Plan& plan) {
  PlanText text;
  text.emplace_back("preset", plan.preset);
  DescribeState("parameters", plan.parameters, text);
  DescribeState("gradients", plan.gradients, text);
  DescribeState("optimizer", plan.optimizer, text);
  text.emplace_back("gather_again", Text(plan.gather_again));
  text.emplace_back("mode", ToString(plan.mode));
  text.emplace_back("accumulation", absl::StrCat(plan.accumulation));
  text.emplace_back("bucket_bytes_max", absl::StrCat(plan.bucket_bytes_max));
  text.emplace_back("first_bucket_bytes_max", absl::StrCat(plan.first_bucket_bytes_max));
  text.emplace_back("overlap", Text(plan.overlap));
  text.emplace_back("adamw.beta1", ExactText(plan.adamw.beta1));
  text.emplace_back("adamw.beta2", ExactText(plan.adamw.beta2));
  text.emplace_back("adamw.epsilon", ExactText(plan.adamw.epsilon));
  text.emplace_back("adamw.weight_decay", ExactText(plan.adamw.weight_decay));
  text.emplace_back("learning_rate.kind", ToString(plan.learning_rate.kind));
  text.emplace_back("learning_rate.peak", ExactText(plan.learning_rate.peak));
  text.emplace_back("learning_rate.floor", ExactText(plan.learning_rate.floor));
  text.emplace_back("learning_rate.warmup_steps", absl::StrCat(plan.learning_rate.warmup_steps));
  text.emplace_back("learning_rate.total_steps", absl::StrCat(plan.learning_rate.total_steps));
  text.emplace_back("gradient_norm_max", ExactText(plan.gradient_norm_max));
  text.emplace_back("seed", absl::StrCat(plan.seed));
  return text;
}

}  // namespace muster
