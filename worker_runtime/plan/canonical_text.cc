#include "worker_runtime/plan/canonical_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::plan {

std::string CanonicalText(const Plan& plan, absl::Span<const ParameterInfo> parameters,
                          DType dtype) {
  std::string text;
  for (const auto& [key, value] : Describe(plan)) absl::StrAppend(&text, key, "=", value, "\n");
  for (const ParameterInfo& parameter : parameters) {
    absl::StrAppend(&text, parameter.name, " [", absl::StrJoin(parameter.shape, ", "), "] ",
                    ToString(dtype), "\n");
  }
  return text;
}

}  // namespace muster::plan
