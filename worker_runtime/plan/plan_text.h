// Plans as text, without loss: what is hashed and compared across ranks, and what `muster plan`
// prints first. Describe (muster/plan.h) is its other half.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "muster/plan.h"
#include "worker_runtime/plan/parameter_info.h"

namespace muster::plan {

// The shortest text that reads back as the same number; -0 is 0.
std::string ExactText(double value);

// The text whose SHA-256 is the plan hash: lines "key=value" of Describe(plan), then "name [d0, d1]
// dtype" of each parameter, with " frozen". Ranks with equal texts have the same plan for the same
// parameters.
std::string CanonicalText(const Plan& plan, absl::Span<const ParameterInfo> parameters);

}  // namespace muster::plan
