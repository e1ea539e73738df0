// The part of a plan that says how gradients become parameters (muster/update.h): its ranges, its
// text, and what it means for each parameter of a model.
//
// Threads: pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "muster/dtype.h"
#include "muster/plan.h"
#include "worker_runtime/plan/parameter_info.h"

namespace muster::plan {

// Errors: kInvalidArgument naming the field, its value and what was expected.
absl::Status CheckUpdate(const Plan& plan);

// What of it is not for parameters of every type. Errors: as CheckUpdate.
absl::Status CheckRounding(const Plan& plan, DType parameters);

// Adds a line for each of its fields.
void DescribeUpdate(const Plan& plan, PlanText& text);

// How one parameter is updated.
struct ParameterUpdate {
  bool frozen = false;
  double learning_rate_scale = 1;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  friend bool operator==(const ParameterUpdate&, const ParameterUpdate&) = default;
};

// [parameters]: what the plan's rule and groups say of each.
//
// Errors: kInvalidArgument: a group fits no parameter of the model (names the pattern and the
//         nearest parameter), or nothing is left to learn.
absl::StatusOr<std::vector<ParameterUpdate>> PlanUpdates(
    const Plan& plan, absl::Span<const ParameterInfo> parameters);

// Whether `name` is what `pattern` says, in which * stands for any letters.
bool FitsPattern(absl::string_view name, absl::string_view pattern);

}  // namespace muster::plan
