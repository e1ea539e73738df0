// A configuration file as a tree that remembers lines: what readers of JSON and of YAML both make.
//
// Pure values.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace muster {

struct ConfigNode {
  enum class Kind { kNull, kBool, kNumber, kText, kList, kMap };
  Kind kind = Kind::kNull;
  // Of a plain value: "true" or "false", a number as the file has it, or the text itself.
  std::string text;
  int line = 0;                   // from 1; of a member the line of its key
  std::vector<ConfigNode> items;  // of a list
  std::vector<std::pair<std::string, ConfigNode>> members;  // of a map, in the file's order

  // Null if there is no such member.
  const ConfigNode* Find(const std::string& key) const {
    for (const auto& [name, member] : members) {
      if (name == key) return &member;
    }
    return nullptr;
  }
};

// "{...}" and "[0.9, 0.999]" for people; of a long list or map the beginning.
std::string ShownValue(const ConfigNode& node);

}  // namespace muster
