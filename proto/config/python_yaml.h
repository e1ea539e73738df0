// A YAML file as Python's yaml.safe_load reads it, with each value as Python's str() writes it:
// what tools in Python put into variables.
//
// Source:  YAML 1.1 as PyYAML 6 has it (booleans, null, numbers).
// Threads: pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config/config_tree.h"

namespace muster {

struct PythonValue {
  enum class Kind { kNone, kBool, kNumber, kText, kList };
  Kind kind = Kind::kNone;
  std::string text = "None";  // as str() writes it
  bool is_none() const { return kind == Kind::kNone; }
  bool is_true() const { return kind == Kind::kBool && text == "True"; }
};

// Entries in the file's order.
using PythonBlock = std::vector<std::pair<std::string, PythonValue>>;

struct PythonConfig {
  PythonBlock values;                                       // of the top level
  std::vector<std::pair<std::string, PythonBlock>> blocks;  // "fsdp_config" and the like
};

// One level of blocks.
//
// Errors: kInvalidArgument with the line: no YAML, no map, a key twice, a value that is neither
// plain nor a list of plain ones.
absl::StatusOr<PythonConfig> ReadPythonYaml(const std::string& text);

// One block of the top level with all that is below it.
struct PythonSection {
  bool is_there = false;
  PythonBlock values;  // of blocks within it by their path: "model.base"
  std::vector<std::string>
      others;  // names of the top level but this one; what they hold is not read
};

// Errors: those of ReadPythonYaml; blocks too deep, or more values than anybody writes.
absl::StatusOr<PythonSection> ReadPythonYamlSection(const std::string& text,
                                                    const std::string& name);

// All of a file, values as it has them. Errors: those of ReadPythonYamlSection; no map.
absl::StatusOr<ConfigNode> ReadYamlTree(const std::string& text);

}  // namespace muster
