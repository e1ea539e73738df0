// A YAML file as Python's yaml.safe_load reads it, and values as Python's str() writes them: what
// tools in Python put into variables.
//
// Source:  YAML 1.1 as PyYAML 6 has it (booleans, null, numbers).
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config/config_tree.h"

namespace muster {

// All of a file, values as it has them; with `section` what is below that key of the top level, and
// of the others their names and lines. `notes` get a line for each key that stands twice in a map,
// of which the last value holds.
//
// Errors: kInvalidArgument with the line: no YAML, no map, blocks too deep, or more values than
// anybody writes.
absl::StatusOr<ConfigNode> ReadYamlTree(const std::string& text, std::vector<std::string>& notes,
                                        const std::string& section = "");

// str() of a value of such a tree that is no map.
std::string PythonText(const ConfigNode& node);

}  // namespace muster
