#include "worker_runtime/plan/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/plan_text.h"

namespace muster::plan {
namespace {

constexpr char kKind[] = "loss_scale.kind";
constexpr char kScale[] = "loss_scale.scale";
constexpr char kSteps[] = "loss_scale.steps";
constexpr char kLastOverflow[] = "loss_scale.last_overflow";
constexpr char kTolerated[] = "loss_scale.tolerated";
constexpr char kGoodSteps[] = "loss_scale.good_steps";

// GradScaler keeps its scale in 32 bits.
double AsFloat(double scale) { return static_cast<float>(scale); }

}  // namespace

LossScaler::LossScaler(const LossScaling& options)
    : options_(options), tolerated_(options.hysteresis) {
  if (options.kind == LossScaling::Kind::kNone) return;
  scale_ = options.kind == LossScaling::Kind::kTorch ? AsFloat(options.initial) : options.initial;
}

LossScaler::Verdict LossScaler::Judge(bool overflow) {
  const Verdict verdict = JudgeByKind(overflow);
  skipped_in_a_row_ = verdict == Verdict::kSkip ? skipped_in_a_row_ + 1 : 0;
  return verdict;
}

LossScaler::Verdict LossScaler::JudgeByKind(bool overflow) {
  switch (options_.kind) {
    case LossScaling::Kind::kDeepSpeed:
      return JudgeAsDeepSpeed(overflow);
    case LossScaling::Kind::kTorch:
      return JudgeAsTorch(overflow);
    default:
      return overflow ? Verdict::kSkip : Verdict::kUpdate;
  }
}

LossScaler::Verdict LossScaler::JudgeAsDeepSpeed(bool overflow) {
  if (overflow) {
    if (options_.hysteresis == 1 || tolerated_ == 1) {
      if (scale_ == options_.minimum) return Verdict::kAtLowest;
      scale_ = std::max(scale_ / 2, options_.minimum);
    } else {
      --tolerated_;
    }
    last_overflow_ = steps_++;
    return Verdict::kSkip;
  }
  if (options_.consecutive_hysteresis) tolerated_ = options_.hysteresis;
  const int64_t since = steps_++ - last_overflow_ - 1;
  if (since > 0 && since % options_.window == 0) {
    tolerated_ = options_.hysteresis;
    scale_ *= 2;
  }
  return Verdict::kUpdate;
}

LossScaler::Verdict LossScaler::JudgeAsTorch(bool overflow) {
  if (overflow) {
    const double lower = AsFloat(scale_ * options_.backoff);
    if (lower == 0) return Verdict::kAtLowest;
    scale_ = lower;
    good_steps_ = 0;
    return Verdict::kSkip;
  }
  if (++good_steps_ == options_.window) {
    const double higher = AsFloat(scale_ * options_.growth);
    if (std::isfinite(higher)) scale_ = higher;
    good_steps_ = 0;
  }
  return Verdict::kUpdate;
}

std::map<std::string, std::string> LossScaler::Save() const {
  if (!is_on()) return {};
  return {{kKind, std::string(ToString(options_.kind))},
          {kScale, ExactText(scale_)},
          {kSteps, absl::StrCat(steps_)},
          {kLastOverflow, absl::StrCat(last_overflow_)},
          {kTolerated, absl::StrCat(tolerated_)},
          {kGoodSteps, absl::StrCat(good_steps_)}};
}

absl::Status LossScaler::Load(const std::map<std::string, std::string>& saved) {
  const auto kind = saved.find(kKind);
  if (kind == saved.end() || kind->second != ToString(options_.kind)) return absl::OkStatus();
  LossScaler read(options_);
  const std::vector<std::pair<const char*, int64_t*>> counts = {
      {kSteps, &read.steps_},
      {kLastOverflow, &read.last_overflow_},
      {kTolerated, &read.tolerated_},
      {kGoodSteps, &read.good_steps_}};
  const auto refuse = [&](const char* field) {
    const auto found = saved.find(field);
    return absl::InvalidArgumentError(absl::StrCat(
        field, found == saved.end() ? " is missing"
                                    : absl::StrCat(" is '", absl::Utf8SafeCHexEscape(found->second),
                                                   "', which is not a number of that kind")));
  };
  const auto scale = saved.find(kScale);
  if (scale == saved.end() || !absl::SimpleAtod(scale->second, &read.scale_) ||
      !(read.scale_ > 0 && std::isfinite(read.scale_))) {
    return refuse(kScale);
  }
  for (const auto& [field, count] : counts) {
    const auto found = saved.find(field);
    if (found == saved.end() || !absl::SimpleAtoi(found->second, count)) return refuse(field);
  }
  *this = read;
  return absl::OkStatus();
}

double SeedOfBackward(double scale, int64_t tokens_of_micro_batch) {
  MUSTER_CHECK(tokens_of_micro_batch > 0);
  const double tokens = static_cast<double>(tokens_of_micro_batch);
  int exponent = std::ilogb(tokens);
  if (tokens >= std::ldexp(std::numbers::sqrt2, exponent)) ++exponent;
  return std::ldexp(scale, -exponent);
}

int64_t SkippedStepsMax(LossScaling::Kind kind) {
  return kind == LossScaling::Kind::kStatic ? 20 : 50;
}

bool CountsSkippedSteps(LossScaling::Kind kind) { return kind == LossScaling::Kind::kTorch; }

}  // namespace muster::plan
