// Ranges of single fields of a plan, and the sentence for one that is out of range.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace muster::plan {

// A FieldError (proto/base/field_error.h): "plan: <field><rest>"
absl::Status PlanError(absl::string_view field, absl::string_view rest,
                       absl::StatusCode code = absl::StatusCode::kInvalidArgument);

// "plan: <field> must be <expected>, not <value>"
absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view expected);

// Errors: kInvalidArgument by Bad. NaN is in no range.
absl::Status CheckInteger(absl::string_view field, int64_t value, int64_t low, int64_t high);
absl::Status CheckNotNegative(absl::string_view field, double value);
absl::Status CheckPositive(absl::string_view field, double value);
// What names of a model are compared with; a plan's texts are lines, so it has no spaces.
absl::Status CheckPattern(absl::string_view field, absl::string_view pattern);
absl::Status CheckBelowOne(absl::string_view field, double value);  // and 0 or more

// "2 or 4": the divisors of `n` next to `wanted`, from below and from above; both are 1 or more.
std::string NearestDivisors(int64_t n, int64_t wanted);

}  // namespace muster::plan
