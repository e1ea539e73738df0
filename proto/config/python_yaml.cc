#include "proto/config/python_yaml.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "proto/base/words.h"

namespace muster {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr char kNoMap[] = "expected keys with values, 'key: value'";
constexpr int kMaxDepth = 8;
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

absl::StatusOr<std::string> Key(const YAML::Node& node, std::set<std::string>& known) {
  if (!node.IsScalar()) return At(node.Mark(), "expected a name in front of the colon");
  if (!known.insert(node.Scalar()).second) {
    return At(node.Mark(), absl::StrCat("the key '", node.Scalar(), "' is there twice"));
  }
  return node.Scalar();
}

absl::StatusOr<PythonBlock> Block(const YAML::Node& node, Budget& budget) {
  PythonBlock block;
  std::set<std::string> known;
  for (const auto& entry : node) {
    MUSTER_ASSIGN_OR_RETURN(std::string key, Key(entry.first, known));
    MUSTER_ASSIGN_OR_RETURN(PythonValue value, Value(entry.second, budget));
    block.emplace_back(std::move(key), std::move(value));
  }
  return block;
}

absl::StatusOr<PythonConfig> Config(const YAML::Node& root) {
  if (!root.IsMap()) return absl::InvalidArgumentError(kNoMap);
  PythonConfig config;
  Budget budget;
  std::set<std::string> known;
  for (const auto& entry : root) {
    MUSTER_ASSIGN_OR_RETURN(std::string key, Key(entry.first, known));
    if (entry.second.IsMap()) {
      MUSTER_ASSIGN_OR_RETURN(PythonBlock block, Block(entry.second, budget));
      config.blocks.emplace_back(std::move(key), std::move(block));
      continue;
    }
    MUSTER_ASSIGN_OR_RETURN(PythonValue value, Value(entry.second, budget));
    config.values.emplace_back(std::move(key), std::move(value));
  }
  return config;
}

// Adds what `node`, a map, holds, with `path` in front of each name.
absl::Status Flatten(const YAML::Node& node, const std::string& path, int depth, Budget& budget,
                     PythonBlock& out) {
  if (depth > kMaxDepth) return At(node.Mark(), "the blocks are too deep");
  std::set<std::string> known;
  for (const auto& entry : node) {
    MUSTER_ASSIGN_OR_RETURN(const std::string key, Key(entry.first, known));
    if (entry.second.IsMap()) {
      MUSTER_RETURN_IF_ERROR(budget.Spend(entry.second));
      MUSTER_RETURN_IF_ERROR(Flatten(entry.second, path + key + ".", depth + 1, budget, out));
      continue;
    }
    MUSTER_ASSIGN_OR_RETURN(PythonValue value, Value(entry.second, budget));
    out.emplace_back(path + key, std::move(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<PythonSection> Section(const YAML::Node& root, const std::string& name) {
  if (!root.IsMap()) return absl::InvalidArgumentError(kNoMap);
  PythonSection section;
  Budget budget;
  std::set<std::string> known;
  for (const auto& entry : root) {
    MUSTER_ASSIGN_OR_RETURN(std::string key, Key(entry.first, known));
    if (key != name) {
      section.others.push_back(std::move(key));
      continue;
    }
    section.is_there = true;
    if (entry.second.IsNull()) continue;
    if (!entry.second.IsMap()) return At(entry.second.Mark(), kNoMap);
    MUSTER_RETURN_IF_ERROR(Flatten(entry.second, "", 1, budget, section.values));
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
absl::StatusOr<ConfigNode> Tree(const YAML::Node& node, int depth, size_t& num_values) {
  if (depth > kMaxDepth) return At(node.Mark(), "the blocks are too deep");
  if (++num_values > kMaxValues) return At(node.Mark(), "too many values");
  ConfigNode tree;
  tree.line = node.Mark().line + 1;
  if (node.IsMap()) {
    tree.kind = ConfigNode::Kind::kMap;
    std::set<std::string> known;
    for (const auto& entry : node) {
      MUSTER_ASSIGN_OR_RETURN(std::string key, Key(entry.first, known));
      MUSTER_ASSIGN_OR_RETURN(ConfigNode member, Tree(entry.second, depth + 1, num_values));
      member.line = entry.first.Mark().line + 1;
      tree.members.push_back({std::move(key), std::move(member)});
    }
  } else if (node.IsSequence()) {
    tree.kind = ConfigNode::Kind::kList;
    for (const YAML::Node& item : node) {
      MUSTER_ASSIGN_OR_RETURN(ConfigNode value, Tree(item, depth + 1, num_values));
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
  if (text.size() > kMaxBytes) return absl::InvalidArgumentError("is longer than a megabyte");
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

absl::StatusOr<ConfigNode> ReadYamlTree(const std::string& text) {
  return ReadYaml(text, [](const YAML::Node& root) -> absl::StatusOr<ConfigNode> {
    if (!root.IsMap()) return absl::InvalidArgumentError(kNoMap);
    size_t num_values = 0;
    return Tree(root, 0, num_values);
  });
}

}  // namespace muster
