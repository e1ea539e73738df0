// A configuration file as a tree that remembers lines: what readers of JSON and of YAML both make.
//
// Pure values.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace muster {

struct ConfigMember;

struct ConfigNode {
  enum class Kind { kNull, kBool, kNumber, kText, kList, kMap };
  Kind kind = Kind::kNull;
  // Text of a plain value: "true" or "false", a number as the file has it, or the text itself.
  std::string text;
  int line = 0;                       // from 1; of a member the line of its key; 0: of no file
  std::vector<ConfigNode> items;      // of a list
  std::vector<ConfigMember> members;  // of a map, in the file's order

  // The member of that key; null if there is none.
  const ConfigNode* Find(const std::string& key) const;
  // Gives a map that member, in the place of one of that key, else as the last.
  void Put(const std::string& key, ConfigNode value);
  void Erase(const std::string& key);
  bool IsTrue() const { return kind == Kind::kBool && text == "true"; }
};

struct ConfigMember {
  std::string key;
  ConfigNode value;
};

// What readers take at most.
inline constexpr size_t kConfigBytesMax = size_t{1} << 20;

// "{...}" and "[0.9, 0.999]" for people; of a long list or map the beginning.
std::string ShownValue(const ConfigNode& node);

}  // namespace muster
