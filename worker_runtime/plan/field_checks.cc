#include "worker_runtime/plan/field_checks.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/field_error.h"
#include "worker_runtime/plan/plan_text.h"

namespace muster::plan {

absl::Status PlanError(absl::string_view field, absl::string_view rest, absl::StatusCode code) {
  return WithBeginning("plan: ", FieldError(field, rest, code));
}

absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view expected) {
  return PlanError(field, absl::StrCat(" must be ", expected, ", not ", value));
}

absl::Status CheckInteger(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (low <= value && value <= high) return absl::OkStatus();
  return Bad(field, absl::StrCat(value), absl::StrCat("between ", low, " and ", high));
}

// Comparisons are written so that NaN fails.
absl::Status CheckNotNegative(absl::string_view field, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return Bad(field, ExactText(value), "a finite number, 0 or more");
}

absl::Status CheckPositive(absl::string_view field, double value) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return Bad(field, ExactText(value), "a finite number above 0");
}

absl::Status CheckPattern(absl::string_view field, absl::string_view pattern) {
  const bool printable =
      std::all_of(pattern.begin(), pattern.end(), [](char c) { return absl::ascii_isgraph(c); });
  if (printable && !pattern.empty()) return absl::OkStatus();
  return Bad(field, absl::StrCat("'", absl::Utf8SafeCHexEscape(pattern), "'"),
             "a pattern of letters, digits and signs without spaces");
}

absl::Status CheckBelowOne(absl::string_view field, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return Bad(field, ExactText(value), "at least 0 and below 1");
}

std::string NearestDivisors(int64_t n, int64_t wanted) {
  int64_t below = std::min(wanted, n);
  while (n % below != 0) --below;
  int64_t above = wanted + 1;
  while (above <= n && above <= 64 * wanted && n % above != 0) ++above;
  const bool has_above = above <= n && n % above == 0;
  return has_above ? absl::StrCat(below, " or ", above) : absl::StrCat(below);
}

}  // namespace muster::plan
