// The version of the project. Its home is the `project` line of the root CMakeLists.txt.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

absl::string_view Version();

// The commit, the compiler and the libraries of this build, for people: lines, each with its end.
std::string BuildDetails();

}  // namespace muster
