// Ranges of the fields of a plan.
#include "muster/plan.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/field_error.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/field_checks.h"
#include "worker_runtime/plan/mesh.h"
#include "worker_runtime/plan/schedules/generators.h"
#include "worker_runtime/plan/update_plan.h"

namespace muster {
namespace {

using plan::Bad;
using plan::CheckInteger;
using plan::CheckNotNegative;

constexpr int64_t kMostMicroBatches = int64_t{1} << 20;
constexpr int64_t kMostLayers = int64_t{1} << 20;
constexpr int64_t kMostBucketBytes = int64_t{1} << 40;
constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr int64_t kMostStagesOfRank = 64;

absl::Status CheckSchedule(const Plan& plan) {
  const std::vector<std::string> names = plan::ScheduleNames();
  const std::string name =
      absl::StrCat("'", absl::Utf8SafeCHexEscape(plan::NameOfSchedule(plan.schedule)), "'");
  if (plan::IsScheduleText(plan.schedule)) {
    const absl::Status read = plan::ParseSchedule(plan.schedule).status();
    if (!read.ok()) return FieldError("schedule", absl::StrCat(": ", read.message()));
  } else if (std::find(names.begin(), names.end(), plan.schedule) == names.end()) {
    return Bad("schedule", name, absl::StrJoin(names, ", "));
  }
  if (plan.stages == 1 && plan.schedule != Plan().schedule) {
    return Bad("schedule", name, "1f1b where there is one stage, which is not a pipeline");
  }
  return absl::OkStatus();
}

absl::Status CheckUnitCosts(const Plan& plan) {
  for (size_t i = 0; i < plan.unit_costs.size(); ++i) {
    const UnitCost& cost = plan.unit_costs[i];
    const std::string field = absl::StrCat("unit_costs.", i);
    MUSTER_RETURN_IF_ERROR(plan::CheckPattern(absl::StrCat(field, ".units"), cost.units));
    MUSTER_RETURN_IF_ERROR(CheckNotNegative(absl::StrCat(field, ".cost"), cost.cost));
  }
  if (plan.stages != 1 || plan.unit_costs.empty()) return absl::OkStatus();
  return Bad("unit_costs", ToString(plan.unit_costs),
             "left out where there is one stage: nothing is cut");
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
  const auto is = [](std::optional<DType> dtype, std::initializer_list<DType> types) {
    return !dtype || std::find(types.begin(), types.end(), *dtype) != types.end();
  };
  if (!is(plan.dtypes.gradients, {DType::kF64, DType::kF32, DType::kBf16, DType::kF16})) {
    return Bad("gradient_dtype", ToString(*plan.dtypes.gradients), "f64, f32, bf16 or f16");
  }
  if (plan.dtypes.reduced && plan.mode == SumMode::kOrdered) {
    return Bad(
        "reduce_dtype", ToString(*plan.dtypes.reduced),
        "left out in ordered mode: what is rounded on its way depends on the number of ranks");
  }
  if (!is(plan.dtypes.optimizer, {DType::kF64, DType::kF32})) {
    return Bad("optimizer_dtype", ToString(*plan.dtypes.optimizer), "f64 or f32");
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
  if (is_sharded(plan.parameters) && !is_sharded(plan.gradients)) {
    return Bad("gradients.placement", ToString(plan.gradients.placement),
               "shard where the parameters are sharded");
  }
  if (plan.gathering.reshard_after_forward && !is_sharded(plan.parameters)) {
    return Bad("gathering.reshard_after_forward", "true",
               "false where the parameters are replicated: there is nothing to gather");
  }
  return absl::OkStatus();
}

absl::Status CheckGathering(const Plan& plan) {
  constexpr int64_t kNoLimit = GatherPlan::kNoLimit;
  const GatherPlan& gathering = plan.gathering;
  const std::tuple<absl::string_view, int64_t, int64_t, int64_t> fields[] = {
      {"stages", plan.stages, 0, kMostRanks},
      {"stages_per_rank", plan.stages_per_rank, 0, kMostStagesOfRank},
      {"shard_ranks", plan.shard_ranks, Plan::kRanksOfNode, kMostRanks},
      {"tensor_ranks", plan.tensor_ranks, 1, kMostRanks},
      {"memory_bytes_max", plan.memory_bytes_max, 0, kNoLimit},
      {"gathering.secondary_ranks", gathering.secondary_ranks, Plan::kRanksOfNode, kMostRanks},
      {"gathering.prefetch_units", gathering.prefetch_units, 0, kNoLimit},
      {"gathering.prefetch_elements", gathering.prefetch_elements, 0, kNoLimit},
      {"gathering.max_live_elements", gathering.max_live_elements, 1, kNoLimit},
      {"gathering.max_reuse_distance", gathering.max_reuse_distance, 0, kNoLimit},
      {"gathering.persistence_threshold", gathering.persistence_threshold, 0, kNoLimit},
      {"gathering.persistence_total", gathering.persistence_total, 0, kNoLimit}};
  for (const auto& [name, value, low, high] : fields) {
    MUSTER_RETURN_IF_ERROR(CheckInteger(name, value, low, high));
  }
  if (gathering.secondary_ranks != 0 && !gathering.reshard_after_forward) {
    return Bad("gathering.secondary_ranks", absl::StrCat(gathering.secondary_ranks),
               "0 unless parameters are given up after the forward pass");
  }
  return absl::OkStatus();
}

absl::Status CheckBuckets(const Plan& plan) {
  MUSTER_RETURN_IF_ERROR(
      CheckInteger("bucket_bytes_max", plan.buckets.bytes_max, 1, kMostBucketBytes));
  return CheckInteger("first_bucket_bytes", plan.buckets.first_bytes, 1, kMostBucketBytes);
}

}  // namespace

absl::Status Plan::Validate() const {
  MUSTER_RETURN_IF_ERROR(CheckPresetName(preset));
  MUSTER_RETURN_IF_ERROR(CheckSchedule(*this));
  MUSTER_RETURN_IF_ERROR(CheckUnitCosts(*this));
  MUSTER_RETURN_IF_ERROR(CheckPlacements(*this));
  MUSTER_RETURN_IF_ERROR(CheckTypes(*this));
  MUSTER_RETURN_IF_ERROR(CheckGathering(*this));
  MUSTER_RETURN_IF_ERROR(CheckInteger("accumulation", accumulation, 1, kMostMicroBatches));
  MUSTER_RETURN_IF_ERROR(CheckBuckets(*this));
  MUSTER_RETURN_IF_ERROR(CheckInteger("recompute.layers", recompute.layers, 1, kMostLayers));
  MUSTER_RETURN_IF_ERROR(plan::CheckUpdate(*this));
  return CheckNotNegative("max_gradient_norm", max_gradient_norm);
}

Plan CompletePlan(Plan plan, int64_t ranks_of_node) {
  for (int64_t* ranks : {&plan.shard_ranks, &plan.gathering.secondary_ranks}) {
    if (*ranks == Plan::kRanksOfNode) *ranks = ranks_of_node;
  }
  return plan;
}

absl::StatusOr<int> NumStages(const Plan& plan, int world_size) {
  if (world_size % plan.tensor_ranks != 0) return plan::MeshOf(plan, 1, world_size).status();
  const int64_t ranks = world_size / plan.tensor_ranks;
  const int64_t stages = plan.stages == 0 ? ranks : plan.stages;
  if (stages <= ranks && ranks % stages == 0) return static_cast<int>(stages);
  return absl::InvalidArgumentError(
      absl::StrCat("plan: ", ranks, plan.tensor_ranks == 1 ? " ranks" : " groups of tensor ranks",
                   " cannot be divided into ", stages, " stages of a pipeline; ",
                   plan::NearestDivisors(ranks, stages), " would fit"));
}

}  // namespace muster
