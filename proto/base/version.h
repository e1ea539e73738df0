// The version of the project. Its home is the `project` line of the root CMakeLists.txt.
//
// Threads: pure.
#pragma once

#include "absl/strings/string_view.h"

namespace muster {

absl::string_view Version();

}  // namespace muster
