// A YAML file as Python's yaml.safe_load reads it, with each value as Python's str() writes it:
// what tools in Python put into variables.
//
// Source:  YAML 1.1 as PyYAML 6 has it (booleans, null, numbers).
// Threads: pure.
#pragma once

#include <map>
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
  int line = 0;               // of its key, from 1; 0: of no file
  bool is_none() const { return kind == Kind::kNone; }
  bool is_true() const { return kind == Kind::kBool && text == "True"; }
};

// Entries in the file's order.
using PythonBlock = std::vector<std::pair<std::string, PythonValue>>;

struct PythonConfig {
  PythonBlock values;                                       // of the top level
  std::vector<std::pair<std::string, PythonBlock>> blocks;  // "fsdp_config" and the like
  std::map<std::string, int> block_lines;
  std::vector<std::string> notes;  // keys that stand twice, worth a line each
};

// One level of blocks. Of a key that stands twice in a map the last value holds.
//
// Errors: kInvalidArgument with the line: no YAML, no map, a value that is neither plain nor a list
// of plain ones.
absl::StatusOr<PythonConfig> ReadPythonYaml(const std::string& text);

// One block of the top level with all that is below it.
struct PythonSection {
  bool is_there = false;
  PythonBlock values;  // of blocks within it by their path: "model.base"
  // Names of the top level but this one, and their lines; what they hold is not read.
  std::vector<std::pair<std::string, int>> others;
  std::vector<std::string> notes;  // as of PythonConfig
};

// Errors: those of ReadPythonYaml; blocks too deep, or more values than anybody writes.
absl::StatusOr<PythonSection> ReadPythonYamlSection(const std::string& text,
                                                    const std::string& name);

// All of a file, values as it has them; `notes` are added to, as of PythonConfig. Errors: those of
// ReadPythonYamlSection; no map.
absl::StatusOr<ConfigNode> ReadYamlTree(const std::string& text, std::vector<std::string>& notes);

}  // namespace muster
