#include "worker_runtime/plan/update_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/field_checks.h"
#include "worker_runtime/plan/plan_text.h"

namespace muster {

absl::string_view ToString(UpdateRule::Kind kind) {
  switch (kind) {
    case UpdateRule::Kind::kAdamW:
      return "adamw";
    case UpdateRule::Kind::kAdam:
      return "adam";
    case UpdateRule::Kind::kSgd:
      return "sgd";
  }
  return "?";
}

absl::string_view ToString(LossScaling::Kind kind) {
  switch (kind) {
    case LossScaling::Kind::kNone:
      return "none";
    case LossScaling::Kind::kStatic:
      return "static";
    case LossScaling::Kind::kDeepSpeed:
      return "deepspeed";
    case LossScaling::Kind::kTorch:
      return "torch";
  }
  return "?";
}

int NumMoments(const UpdateRule& rule) {
  if (rule.kind != UpdateRule::Kind::kSgd) return 2;
  return rule.momentum == 0 ? 0 : 1;
}

}  // namespace muster

namespace muster::plan {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 48;  // products with it still fit 64 bits
constexpr double kHighestLearningRate = 1e6;
constexpr double kHighestLossScale = 0x1p127;  // in 32 bits
constexpr double kLeastEpsilon = std::numeric_limits<float>::min();

absl::Status CheckRule(const UpdateRule& rule) {
  MUSTER_RETURN_IF_ERROR(CheckBelowOne("update.beta1", rule.beta1));
  MUSTER_RETURN_IF_ERROR(CheckBelowOne("update.beta2", rule.beta2));
  MUSTER_RETURN_IF_ERROR(CheckPositive("update.epsilon", rule.epsilon));
  if (rule.epsilon < kLeastEpsilon) {
    return Bad("update.epsilon", ExactText(rule.epsilon),
               absl::StrCat(kLeastEpsilon,
                            " or more: a smaller one is 0 in 32 bits, and 0 / 0 "
                            "where a gradient is 0"));
  }
  MUSTER_RETURN_IF_ERROR(CheckNotNegative("update.weight_decay", rule.weight_decay));
  MUSTER_RETURN_IF_ERROR(CheckBelowOne("update.momentum", rule.momentum));
  if (rule.kind != UpdateRule::Kind::kSgd && rule.momentum != 0) {
    return Bad("update.momentum", ExactText(rule.momentum),
               absl::StrCat("0 with ", ToString(rule.kind), ", whose momentum is beta1"));
  }
  if (rule.nesterov && rule.momentum == 0) {
    return Bad("update.nesterov", "true", "false without a momentum to look ahead along");
  }
  return absl::OkStatus();
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
  if (schedule.falls() && schedule.total_steps <= schedule.warmup_steps) {
    return Bad("learning_rate.total_steps", absl::StrCat(schedule.total_steps),
               absl::StrCat("more than the ", schedule.warmup_steps, " steps of warm-up, since a ",
                            ToString(schedule.kind), " schedule falls after them"));
  }
  return absl::OkStatus();
}

absl::Status CheckGroup(const ParameterGroup& group, absl::string_view name) {
  const auto field = [&](absl::string_view of) { return absl::StrCat(name, ".", of); };
  MUSTER_RETURN_IF_ERROR(CheckPattern(field("parameters"), group.parameters));
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(field("learning_rate_scale"), group.learning_rate_scale));
  if (group.weight_decay) {
    MUSTER_RETURN_IF_ERROR(CheckNotNegative(field("weight_decay"), *group.weight_decay));
  }
  if (group.beta1) MUSTER_RETURN_IF_ERROR(CheckBelowOne(field("beta1"), *group.beta1));
  if (group.beta2) MUSTER_RETURN_IF_ERROR(CheckBelowOne(field("beta2"), *group.beta2));
  return absl::OkStatus();
}

absl::Status CheckScale(absl::string_view field, double scale) {
  if (scale > 0 && scale <= kHighestLossScale) return absl::OkStatus();
  return Bad(field, ExactText(scale), "above 0 and at most 2^127");
}

absl::Status CheckLossScaling(const LossScaling& scaling) {
  MUSTER_RETURN_IF_ERROR(CheckScale("loss_scaling.initial", scaling.initial));
  MUSTER_RETURN_IF_ERROR(CheckScale("loss_scaling.minimum", scaling.minimum));
  MUSTER_RETURN_IF_ERROR(CheckInteger("loss_scaling.window", scaling.window, 1, kMostSteps));
  MUSTER_RETURN_IF_ERROR(
      CheckInteger("loss_scaling.hysteresis", scaling.hysteresis, 1, kMostSteps));
  if (scaling.kind == LossScaling::Kind::kDeepSpeed && scaling.minimum > scaling.initial) {
    return Bad("loss_scaling.minimum", ExactText(scaling.minimum),
               absl::StrCat("at most the initial scale, which is ", ExactText(scaling.initial)));
  }
  if (!(scaling.growth >= 1 && scaling.growth <= kHighestLossScale)) {
    return Bad("loss_scaling.growth", ExactText(scaling.growth), "1 or more, and at most 2^127");
  }
  if (!(scaling.backoff > 0 && scaling.backoff < 1)) {
    return Bad("loss_scaling.backoff", ExactText(scaling.backoff), "between 0 and 1");
  }
  return absl::OkStatus();
}

std::string NameOfGroup(size_t number) { return absl::StrCat("groups.", number); }

absl::Status NoParameterError(const Plan& plan, size_t group,
                              absl::Span<const ParameterInfo> parameters) {
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : parameters) names.push_back(parameter.name);
  const std::string& pattern = plan.groups[group].parameters;
  return PlanError(
      absl::StrCat(NameOfGroup(group), ".parameters"),
      absl::StrCat(" '", pattern, "' fits no parameter of the model; expected a name such as ",
                   names.front(), ", with * for any letters", DidYouMean(pattern, names)));
}

}  // namespace

absl::Status CheckRounding(const Plan& plan, DType parameters) {
  if (!plan.update.stochastic_rounding || parameters == DType::kBf16) return absl::OkStatus();
  return PlanError("update.stochastic_rounding",
                   absl::StrCat(" must be left out with parameters in ", ToString(parameters),
                                ": only those in bf16 can be rounded so"));
}

absl::Status CheckUpdate(const Plan& plan) {
  MUSTER_RETURN_IF_ERROR(CheckRule(plan.update));
  MUSTER_RETURN_IF_ERROR(CheckSchedule(plan.learning_rate));
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    MUSTER_RETURN_IF_ERROR(CheckGroup(plan.groups[i], NameOfGroup(i)));
  }
  return CheckLossScaling(plan.loss_scaling);
}

void DescribeUpdate(const Plan& plan, PlanText& text) {
  const auto number = [&](std::string name, double value) {
    text.emplace_back(std::move(name), ExactText(value));
  };
  const auto count = [&](std::string name, int64_t value) {
    text.emplace_back(std::move(name), absl::StrCat(value));
  };
  const auto flag = [&](std::string name, bool value) {
    text.emplace_back(std::move(name), value ? "true" : "false");
  };
  text.emplace_back("update.kind", ToString(plan.update.kind));
  number("update.beta1", plan.update.beta1);
  number("update.beta2", plan.update.beta2);
  number("update.epsilon", plan.update.epsilon);
  number("update.weight_decay", plan.update.weight_decay);
  number("update.momentum", plan.update.momentum);
  flag("update.nesterov", plan.update.nesterov);
  flag("update.stochastic_rounding", plan.update.stochastic_rounding);
  text.emplace_back("learning_rate.kind", ToString(plan.learning_rate.kind));
  number("learning_rate.peak", plan.learning_rate.peak);
  number("learning_rate.floor", plan.learning_rate.floor);
  count("learning_rate.warmup_steps", plan.learning_rate.warmup_steps);
  count("learning_rate.total_steps", plan.learning_rate.total_steps);
  text.emplace_back("learning_rate.rise", ToString(plan.learning_rate.rise));
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    const ParameterGroup& group = plan.groups[i];
    const auto field = [&](absl::string_view of) { return absl::StrCat(NameOfGroup(i), ".", of); };
    text.emplace_back(field("parameters"), group.parameters);
    flag(field("frozen"), group.frozen);
    number(field("learning_rate_scale"), group.learning_rate_scale);
    if (group.weight_decay) number(field("weight_decay"), *group.weight_decay);
    if (group.beta1) number(field("beta1"), *group.beta1);
    if (group.beta2) number(field("beta2"), *group.beta2);
  }
  text.emplace_back("loss_scaling.kind", ToString(plan.loss_scaling.kind));
  number("loss_scaling.initial", plan.loss_scaling.initial);
  count("loss_scaling.window", plan.loss_scaling.window);
  count("loss_scaling.hysteresis", plan.loss_scaling.hysteresis);
  flag("loss_scaling.consecutive_hysteresis", plan.loss_scaling.consecutive_hysteresis);
  number("loss_scaling.minimum", plan.loss_scaling.minimum);
  number("loss_scaling.growth", plan.loss_scaling.growth);
  number("loss_scaling.backoff", plan.loss_scaling.backoff);
}

absl::StatusOr<std::vector<ParameterUpdate>> PlanUpdates(
    const Plan& plan, absl::Span<const ParameterInfo> parameters) {
  std::vector<ParameterUpdate> updates;
  std::vector<bool> fits_one(plan.groups.size(), false);
  bool any_learns = false;
  for (const ParameterInfo& parameter : parameters) {
    ParameterUpdate update = {.frozen = parameter.frozen,
                              .weight_decay = parameter.weight_decay ? plan.update.weight_decay : 0,
                              .beta1 = plan.update.beta1,
                              .beta2 = plan.update.beta2};
    const ParameterGroup* own = nullptr;
    for (size_t i = 0; i < plan.groups.size(); ++i) {
      if (!FitsPattern(parameter.name, plan.groups[i].parameters)) continue;
      fits_one[i] = true;
      if (own == nullptr) own = &plan.groups[i];
    }
    if (own != nullptr) {
      update.frozen = update.frozen || own->frozen;
      update.learning_rate_scale = own->learning_rate_scale;
      update.weight_decay = own->weight_decay.value_or(update.weight_decay);
      update.beta1 = own->beta1.value_or(update.beta1);
      update.beta2 = own->beta2.value_or(update.beta2);
    }
    any_learns = any_learns || !update.frozen;
    updates.push_back(update);
  }
  const auto unfit = std::find(fits_one.begin(), fits_one.end(), false);
  if (unfit != fits_one.end()) return NoParameterError(plan, unfit - fits_one.begin(), parameters);
  if (!any_learns) {
    return absl::InvalidArgumentError(
        "plan: groups freeze every parameter of the model, so there is nothing to learn");
  }
  return updates;
}

// The text before the first * is the beginning; each further part is taken where it comes first,
// which leaves the most for those behind it; the last must be the end.
bool FitsPattern(absl::string_view name, absl::string_view pattern) {
  const size_t star = pattern.find('*');
  if (star == absl::string_view::npos) return name == pattern;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  name.remove_prefix(star);
  pattern.remove_prefix(star + 1);
  for (size_t next = pattern.find('*'); next != absl::string_view::npos; next = pattern.find('*')) {
    const size_t found = name.find(pattern.substr(0, next));
    if (found == absl::string_view::npos) return false;
    name.remove_prefix(found + next);
    pattern.remove_prefix(next + 1);
  }
  return name.size() >= pattern.size() && name.substr(name.size() - pattern.size()) == pattern;
}

}  // namespace muster::plan
