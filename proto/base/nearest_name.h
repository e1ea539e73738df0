// The "did you mean" of error messages.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// The name of `known` that `given` was probably meant to be: the one at the smallest edit distance,
// else one that starts with it. Empty if none is near.
std::string NearestName(absl::string_view given, const std::vector<std::string>& known);

// "; did you mean NAME?" of the nearest name, or "".
std::string DidYouMean(absl::string_view given, const std::vector<std::string>& known);

}  // namespace muster
