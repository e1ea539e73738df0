// JSON as configuration files have it: with comments (//, # and /* */) and a comma behind the last
// member. DeepSpeed reads its files with hjson, which allows them.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/config/config_tree.h"

namespace muster {

// Errors: kInvalidArgument with the line: no JSON, a key twice in a map, values nested too deep,
//         more than a megabyte.
absl::StatusOr<ConfigNode> ReadJson(const std::string& text);

}  // namespace muster
