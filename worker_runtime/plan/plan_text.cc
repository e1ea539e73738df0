#include "worker_runtime/plan/plan_text.h"

#include <charconv>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "worker_runtime/plan/update_plan.h"

namespace muster {
namespace {

using plan::ExactText;

void DescribeState(absl::string_view name, const StatePlan& state, PlanText& text) {
  text.emplace_back(absl::StrCat(name, ".placement"), ToString(state.placement));
  text.emplace_back(absl::StrCat(name, ".residency"), ToString(state.residency));
}

std::string Text(bool value) { return value ? "true" : "false"; }

void DescribeGathering(const GatherPlan& plan, PlanText& text) {
  const auto limit = [](int64_t value) {
    return value == GatherPlan::kNoLimit ? "none" : absl::StrCat(value);
  };
  text.emplace_back("gathering.reshard_after_forward", Text(plan.reshard_after_forward));
  text.emplace_back("gathering.secondary_ranks", absl::StrCat(plan.secondary_ranks));
  text.emplace_back("gathering.backward_prefetch", ToString(plan.backward_prefetch));
  text.emplace_back("gathering.prefetch_units", limit(plan.prefetch_units));
  text.emplace_back("gathering.prefetch_elements", limit(plan.prefetch_elements));
  text.emplace_back("gathering.max_live_elements", limit(plan.max_live_elements));
  text.emplace_back("gathering.max_reuse_distance", limit(plan.max_reuse_distance));
  text.emplace_back("gathering.persistence_threshold", limit(plan.persistence_threshold));
  text.emplace_back("gathering.persistence_total", limit(plan.persistence_total));
}

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

absl::string_view ToString(BackwardPrefetch prefetch) {
  switch (prefetch) {
    case BackwardPrefetch::kPre:
      return "pre";
    case BackwardPrefetch::kPost:
      return "post";
    case BackwardPrefetch::kNone:
      return "none";
  }
  return "?";
}

absl::string_view ToString(GradientReduction reduction) {
  switch (reduction) {
    case GradientReduction::kChosen:
      return "chosen";
    case GradientReduction::kEachMicroBatch:
      return "each-micro-batch";
    case GradientReduction::kOnce:
      return "once";
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

absl::string_view ToString(Recompute::Kind kind) {
  switch (kind) {
    case Recompute::Kind::kNone:
      return "none";
    case Recompute::Kind::kSelective:
      return "selective";
    case Recompute::Kind::kFull:
      return "full";
  }
  return "?";
}

PlanText Describe(const Plan& plan) {
  PlanText text;
  text.emplace_back("preset", plan.preset);
  DescribeState("parameters", plan.parameters, text);
  DescribeState("gradients", plan.gradients, text);
  DescribeState("optimizer", plan.optimizer, text);
  const auto type = [](std::optional<DType> dtype) { return dtype ? ToString(*dtype) : "chosen"; };
  text.emplace_back("gradient_dtype", type(plan.dtypes.gradients));
  text.emplace_back("optimizer_dtype", type(plan.dtypes.optimizer));
  text.emplace_back("stages", plan.stages == 0 ? "one per rank" : absl::StrCat(plan.stages));
  text.emplace_back("schedule",
                    absl::StrReplaceAll(absl::StripSuffix(plan.schedule, "\n"), {{"\n", "; "}}));
  text.emplace_back("stages_per_rank", plan.stages_per_rank == 0
                                           ? "as the schedule has"
                                           : absl::StrCat(plan.stages_per_rank));
  text.emplace_back("unit_costs", plan.unit_costs.empty() ? "products" : ToString(plan.unit_costs));
  text.emplace_back("shard_ranks", absl::StrCat(plan.shard_ranks));
  text.emplace_back("tensor_ranks", absl::StrCat(plan.tensor_ranks));
  DescribeGathering(plan.gathering, text);
  text.emplace_back("gradient_reduction", ToString(plan.gradient_reduction));
  text.emplace_back("memory_bytes_max", absl::StrCat(plan.memory_bytes_max));
  text.emplace_back("reduce_dtype",
                    plan.dtypes.reduced ? ToString(*plan.dtypes.reduced) : "the gradients'");
  text.emplace_back("mode", ToString(plan.mode));
  text.emplace_back("accumulation", absl::StrCat(plan.accumulation));
  text.emplace_back("bucket_bytes_max", absl::StrCat(plan.buckets.bytes_max));
  text.emplace_back("first_bucket_bytes", absl::StrCat(plan.buckets.first_bytes));
  text.emplace_back("overlap", Text(plan.overlap));
  text.emplace_back("recompute.kind", ToString(plan.recompute.kind));
  text.emplace_back("recompute.layers", absl::StrCat(plan.recompute.layers));
  plan::DescribeUpdate(plan, text);
  text.emplace_back("max_gradient_norm", ExactText(plan.max_gradient_norm));
  text.emplace_back("seed", absl::StrCat(plan.seed));
  return text;
}

std::string ToString(absl::Span<const UnitCost> costs) {
  return absl::StrJoin(costs, " ", [](std::string* text, const UnitCost& cost) {
    absl::StrAppend(text, cost.units, ":", ExactText(cost.cost));
  });
}

absl::StatusOr<UnitCost> ParseUnitCost(absl::string_view text) {
  const size_t colon = text.rfind(':');
  UnitCost cost = {.units = std::string(text.substr(0, colon))};
  if (colon != absl::string_view::npos && absl::SimpleAtod(text.substr(colon + 1), &cost.cost)) {
    return cost;
  }
  return absl::InvalidArgumentError("expected UNITS:COST with a number, such as h.*:12");
}

}  // namespace muster

namespace muster::plan {

std::string ExactText(double value) {
  char text[32];
  value += 0.0;  // -0 becomes 0
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string CanonicalText(const Plan& plan, absl::Span<const ParameterInfo> parameters) {
  std::string text;
  for (const auto& [key, value] : Describe(plan)) absl::StrAppend(&text, key, "=", value, "\n");
  for (const ParameterInfo& parameter : parameters) {
    absl::StrAppend(&text, parameter.name, " [", absl::StrJoin(parameter.shape, ", "), "] ",
                    ToString(parameter.dtype), parameter.cut ? " of each tensor rank" : "",
                    parameter.frozen ? " frozen\n" : "\n");
  }
  return text;
}

}  // namespace muster::plan
