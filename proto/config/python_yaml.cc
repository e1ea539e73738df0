#include "proto/config/python_yaml.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "proto/base/words.h"

namespace muster {
namespace {

constexpr char kNoMap[] = "expected keys with values, 'key: value'";
constexpr int kBlockDepthMax = 8;
constexpr size_t kMaxValues = 10000;

absl::Status At(const YAML::Mark& mark, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", mark.line + 1, ": ", why));
}

bool IsOneOf(absl::string_view text, std::initializer_list<absl::string_view> words) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (absl::string_view word : words) {
    // PyYAML knows three spellings of each: yes, Yes, YES.
    if (lower == word && (text == lower || text == absl::AsciiStrToUpper(lower) ||
                          (absl::ascii_isupper(text[0]) && text.substr(1) == lower.substr(1)))) {
      return true;
    }
  }
  return false;
}

// Python's repr of a float: the shortest text that reads back as the same.
std::string Repr(double number) {
  char buffer[64];
  const double size = std::fabs(number);
  const bool is_plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), number,
                    is_plain ? std::chars_format::fixed : std::chars_format::scientific)
          .ptr;
  std::string text(buffer, end);
  if (is_plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

// A float of YAML 1.1 has a point; its exponent a sign.
bool IsFloat(absl::string_view text) {
  const size_t exponent = text.find_first_of("eE");
  const absl::string_view mantissa = text.substr(0, exponent);
  if (mantissa.find('.') == absl::string_view::npos) return false;
  if (mantissa.find_first_not_of("0123456789.+-") != absl::string_view::npos) return false;
  if (exponent == absl::string_view::npos) return true;
  const absl::string_view power = text.substr(exponent + 1);
  return power.size() > 1 && (power[0] == '+' || power[0] == '-') &&
         power.find_first_not_of("0123456789", 1) == absl::string_view::npos;
}

PythonValue PlainValue(const std::string& text) {
  using Kind = PythonValue::Kind;
  if (text.empty() || text == "~" || IsOneOf(text, {"null"})) return {};
  if (IsOneOf(text, {"true", "yes", "on"})) return {Kind::kBool, "True"};
  if (IsOneOf(text, {"false", "no", "off"})) return {Kind::kBool, "False"};
  int64_t integer = 0;
  const bool has_octal_look = text.size() > 1 && text[0] == '0';
  if (!has_octal_look && text.find(' ') == std::string::npos && absl::SimpleAtoi(text, &integer)) {
    return {Kind::kNumber, absl::StrCat(integer)};
  }
  double number = 0;
  if (IsFloat(text) && absl::SimpleAtod(text, &number) && std::isfinite(number)) {
    return {Kind::kNumber, Repr(number)};
  }
  return {Kind::kText, text};
}

PythonValue ScalarValue(const YAML::Node& node) {
  // "!" is the tag of what was quoted.
  if (node.Tag() == "!") return {PythonValue::Kind::kText, node.Scalar()};
  return PlainValue(node.Scalar());
}

// What has been read of one file, where an alias can repeat all that it stands for.
class Budget {
 public:
  absl::Status Spend(const YAML::Node& node) {
    return ++num_values_ <= kMaxValues ? absl::OkStatus() : At(node.Mark(), "too many values");
  }

 private:
  size_t num_values_ = 0;
};

absl::StatusOr<PythonValue> Value(const YAML::Node& node, Budget& budget) {
  MUSTER_RETURN_IF_ERROR(budget.Spend(node));
  if (node.IsNull()) return PythonValue{};
  if (node.IsScalar()) return ScalarValue(node);
  if (!node.IsSequence()) return At(node.Mark(), "expected a plain value or a list of them");
  PythonValue list{PythonValue::Kind::kList, "["};
  for (const YAML::Node& item : node) {
    MUSTER_RETURN_IF_ERROR(budget.Spend(item));
    if (!item.IsScalar() && !item.IsNull()) return At(item.Mark(), "expected a plain value");
    const PythonValue value = item.IsNull() ? PythonValue{} : ScalarValue(item);
    const bool is_text = value.kind == PythonValue::Kind::kText;
    absl::StrAppend(&list.text, list.text.size() > 1 ? ", " : "", is_text ? "'" : "", value.text,
                    is_text ? "'" : "");
  }
  list.text += "]";
  return list;
}

struct Entry {
  std::string key;
  int line = 0;
  YAML::Node value;
};

// What a map holds. Of a key that stands twice the last value, in the first one's place.
absl::StatusOr<std::vector<Entry>> EntriesOf(const YAML::Node& map,
                                             std::vector<std::string>& notes) {
  std::vector<Entry> entries;
  std::map<std::string, size_t> places;
  for (const auto& member : map) {
    const YAML::Node& key = member.first;
    if (!key.IsScalar()) return At(key.Mark(), "expected a name in front of the colon");
    const int line = key.Mark().line + 1;
    const auto [place, is_new] = places.emplace(key.Scalar(), entries.size());
    if (is_new) {
      entries.push_back({.key = key.Scalar(), .line = line, .value = member.second});
      continue;
    }
    Entry& entry = entries[place->second];
    notes.push_back(absl::StrCat("line ", line, ": the key '", entry.key,
                                 "' is there twice; this one holds, not that of line ",
                                 entry.line));
    entry.line = line;
    entry.value.reset(member.second);
  }
  return entries;
}

absl::StatusOr<PythonValue> ValueOf(const Entry& entry, Budget& budget) {
  MUSTER_ASSIGN_OR_RETURN(PythonValue value, Value(entry.value, budget));
  value.line = entry.line;
  return value;
}

absl::StatusOr<PythonConfig> Config(const YAML::Node& root) {
  if (!root.IsMap()) return absl::InvalidArgumentError(kNoMap);
  PythonConfig config;
  Budget budget;
  MUSTER_ASSIGN_OR_RETURN(const std::vector<Entry> entries, EntriesOf(root, config.notes));
  for (const Entry& entry : entries) {
    if (!entry.value.IsMap()) {
      MUSTER_ASSIGN_OR_RETURN(PythonValue value, ValueOf(entry, budget));
      config.values.emplace_back(entry.key, std::move(value));
      continue;
    }
    PythonBlock block;
    MUSTER_ASSIGN_OR_RETURN(const std::vector<Entry> members, EntriesOf(entry.value, config.notes));
    for (const Entry& member : members) {
      MUSTER_ASSIGN_OR_RETURN(PythonValue value, ValueOf(member, budget));
      block.emplace_back(member.key, std::move(value));
    }
    config.blocks.emplace_back(entry.key, std::move(block));
    config.block_lines[entry.key] = entry.line;
  }
  return config;
}

// Adds what `node`, a map, holds, with `path` in front of each name.
absl::Status Flatten(const YAML::Node& node, const std::string& path, int depth, Budget& budget,
                     PythonSection& out) {
  if (depth > kBlockDepthMax) return At(node.Mark(), "the blocks are too deep");
  MUSTER_ASSIGN_OR_RETURN(const std::vector<Entry> entries, EntriesOf(node, out.notes));
  for (const Entry& entry : entries) {
    if (entry.value.IsMap()) {
      MUSTER_RETURN_IF_ERROR(budget.Spend(entry.value));
      MUSTER_RETURN_IF_ERROR(Flatten(entry.value, path + entry.key + ".", depth + 1, budget, out));
      continue;
    }
    MUSTER_ASSIGN_OR_RETURN(PythonValue value, ValueOf(entry, budget));
    out.values.emplace_back(path + entry.key, std::move(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<PythonSection> Section(const YAML::Node& root, const std::string& name) {
  if (!root.IsMap()) return absl::InvalidArgumentError(kNoMap);
  PythonSection section;
  Budget budget;
  MUSTER_ASSIGN_OR_RETURN(const std::vector<Entry> entries, EntriesOf(root, section.notes));
  for (const Entry& entry : entries) {
    if (entry.key != name) {
      section.others.emplace_back(entry.key, entry.line);
      continue;
    }
    section.is_there = true;
    if (entry.value.IsNull()) continue;
    if (!entry.value.IsMap()) return At(entry.value.Mark(), kNoMap);
    MUSTER_RETURN_IF_ERROR(Flatten(entry.value, "", 1, budget, section));
  }
  return section;
}

ConfigNode::Kind KindOf(PythonValue::Kind kind) {
  switch (kind) {
    case PythonValue::Kind::kBool:
      return ConfigNode::Kind::kBool;
    case PythonValue::Kind::kNumber:
      return ConfigNode::Kind::kNumber;
    case PythonValue::Kind::kText:
      return ConfigNode::Kind::kText;
    case PythonValue::Kind::kList:
      return ConfigNode::Kind::kList;
    case PythonValue::Kind::kNone:
      break;
  }
  return ConfigNode::Kind::kNull;
}

// `num_values` counts those made so far.
absl::StatusOr<ConfigNode> Tree(const YAML::Node& node, int depth, size_t& num_values,
                                std::vector<std::string>& notes) {
  if (depth > kBlockDepthMax) return At(node.Mark(), "the blocks are too deep");
  if (++num_values > kMaxValues) return At(node.Mark(), "too many values");
  ConfigNode tree;
  tree.line = node.Mark().line + 1;
  if (node.IsMap()) {
    tree.kind = ConfigNode::Kind::kMap;
    MUSTER_ASSIGN_OR_RETURN(const std::vector<Entry> entries, EntriesOf(node, notes));
    for (const Entry& entry : entries) {
      MUSTER_ASSIGN_OR_RETURN(ConfigNode member, Tree(entry.value, depth + 1, num_values, notes));
      member.line = entry.line;
      tree.members.push_back({entry.key, std::move(member)});
    }
  } else if (node.IsSequence()) {
    tree.kind = ConfigNode::Kind::kList;
    for (const YAML::Node& item : node) {
      MUSTER_ASSIGN_OR_RETURN(ConfigNode value, Tree(item, depth + 1, num_values, notes));
      tree.items.push_back(std::move(value));
    }
  } else if (!node.IsNull()) {
    PythonValue value = ScalarValue(node);
    tree.kind = KindOf(value.kind);
    if (tree.kind == ConfigNode::Kind::kBool) {
      tree.text = value.is_true() ? "true" : "false";
    } else if (tree.kind != ConfigNode::Kind::kNull) {
      tree.text = node.Scalar();
    }
  }
  return tree;
}

// `read` of the root; the library's only way to say what is wrong is an exception.
template <typename Read>
auto ReadYaml(const std::string& text, Read read) -> decltype(read(YAML::Node())) {
  if (text.size() > kConfigBytesMax) return absl::InvalidArgumentError("is longer than a megabyte");
  try {
    return read(YAML::Load(std::string(absl::StripPrefix(text, kByteOrderMark))));
  } catch (const YAML::Exception& error) {
    return At(error.mark, error.msg);
  }
}

}  // namespace

absl::StatusOr<PythonConfig> ReadPythonYaml(const std::string& text) {
  return ReadYaml(text, [](const YAML::Node& root) { return Config(root); });
}

absl::StatusOr<PythonSection> ReadPythonYamlSection(const std::string& text,
                                                    const std::string& name) {
  return ReadYaml(text, [&](const YAML::Node& root) { return Section(root, name); });
}

absl::StatusOr<ConfigNode> ReadYamlTree(const std::string& text, std::vector<std::string>& notes) {
  return ReadYaml(text, [&](const YAML::Node& root) -> absl::StatusOr<ConfigNode> {
    if (!root.IsMap()) return absl::InvalidArgumentError(kNoMap);
    size_t num_values = 0;
    return Tree(root, 0, num_values, notes);
  });
}

}  // namespace muster
