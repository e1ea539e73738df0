// Ranges of the fields of a plan.
#include "muster/plan.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/field_checks.h"
#include "worker_runtime/plan/update_plan.h"

namespace muster {
namespace {

using plan::Bad;
using plan::CheckInteger;
using plan::CheckNotNegative;

constexpr int64_t kMostMicroBatches = int64_t{1} << 20;
constexpr int64_t kMostLayers = int64_t{1} << 20;
constexpr int64_t kMostBucketBytes = int64_t{1} << 40;

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

}  // namespace

absl::Status Plan::Validate() const {
  MUSTER_RETURN_IF_ERROR(CheckPresetName(preset));
  MUSTER_RETURN_IF_ERROR(CheckPlacements(*this));
  MUSTER_RETURN_IF_ERROR(CheckTypes(*this));
  MUSTER_RETURN_IF_ERROR(CheckInteger("accumulation", accumulation, 1, kMostMicroBatches));
  MUSTER_RETURN_IF_ERROR(CheckBuckets(*this));
  MUSTER_RETURN_IF_ERROR(CheckInteger("recompute.layers", recompute.layers, 1, kMostLayers));
  MUSTER_RETURN_IF_ERROR(plan::CheckUpdate(*this));
  return CheckNotNegative("max_gradient_norm", max_gradient_norm);
}

}  // namespace muster
