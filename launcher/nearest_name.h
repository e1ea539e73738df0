// The "did you mean" of error messages. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster::launcher {

// The name that `given` was probably meant to be: one that starts with it (nothing is abbreviated,
// but people try), else the one at the smallest edit distance. Empty if none is near.
std::string NearestName(absl::string_view given, const std::vector<std::string>& known);

// "; did you mean NAME?" of the nearest name, or "".
std::string DidYouMean(absl::string_view given, const std::vector<std::string>& known);

}  // namespace muster::launcher
