#include "worker_runtime/plan/state_types.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::plan {
namespace {

// The first parameter that learns, or that is frozen; null: there is none.
const ParameterInfo* FirstOf(absl::Span<const ParameterInfo> parameters, bool frozen) {
  const auto first = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const ParameterInfo& info) { return info.frozen == frozen; });
  return first == parameters.end() ? nullptr : &*first;
}

}  // namespace

StateTypes TypesOf(const Plan& plan, DType parameters) {
  const DType wide = SizeOf(parameters) < SizeOf(DType::kF32) ? DType::kF32 : parameters;
  const DType optimizer = plan.dtypes.optimizer.value_or(wide);
  const DType gradients = plan.dtypes.gradients.value_or(wide);
  return {.parameters = parameters,
          .frozen = parameters,
          .master = optimizer,
          .gradients = gradients,
          .moments = optimizer,
          .reduced = plan.dtypes.reduced.value_or(gradients)};
}

StateTypes TypesOf(const Plan& plan, absl::Span<const ParameterInfo> parameters) {
  const ParameterInfo* const frozen = FirstOf(parameters, true);
  const ParameterInfo* learned = FirstOf(parameters, false);
  if (learned == nullptr) learned = frozen;
  StateTypes types = TypesOf(plan, learned == nullptr ? DType::kF32 : learned->dtype);
  if (frozen != nullptr) types.frozen = frozen->dtype;
  return types;
}

absl::Status CheckParameterTypes(absl::Span<const ParameterInfo> parameters) {
  for (const bool frozen : {false, true}) {
    const ParameterInfo* const first = FirstOf(parameters, frozen);
    for (const ParameterInfo& info : parameters) {
      if (info.frozen != frozen || info.dtype == first->dtype) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(first->name, " is in ", ToString(first->dtype), " and ", info.name, " in ",
                       ToString(info.dtype), ": all parameters that ",
                       frozen ? "are frozen" : "learn", " must have one type; those that ",
                       frozen ? "learn" : "are frozen", " may have another"));
    }
  }
  const ParameterInfo* const frozen = FirstOf(parameters, true);
  const ParameterInfo* const learned = FirstOf(parameters, false);
  if (frozen == nullptr || learned == nullptr || frozen->dtype == learned->dtype) {
    return absl::OkStatus();
  }
  if (frozen->dtype != DType::kF64 && learned->dtype != DType::kF64) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(frozen->name, " is frozen in ", ToString(frozen->dtype), ", and ", learned->name,
                   " learns in ", ToString(learned->dtype), ": f64 stands beside no other type"));
}

}  // namespace muster::plan
