// The text whose SHA-256 is the plan hash: equal texts mean that ranks do the same.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "muster/dtype.h"
#include "muster/plan.h"
#include "worker_runtime/plan/parameter_info.h"

namespace muster::plan {

// Lines "key=value" of Describe(plan), then "name [d0, d1] dtype" of each parameter.
std::string CanonicalText(const Plan& plan, absl::Span<const ParameterInfo> parameters,
                          DType dtype);

}  // namespace muster::plan
