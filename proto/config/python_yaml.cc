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
#include "absl/strings/str_join.h"
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

ConfigNode Plain(const std::string& text) {
  using Kind = ConfigNode::Kind;
  if (text.empty() || text == "~" || IsOneOf(text, {"null"})) return {};
  if (IsOneOf(text, {"true", "yes", "on"})) return {Kind::kBool, "true"};
  if (IsOneOf(text, {"false", "no", "off"})) return {Kind::kBool, "false"};
  int64_t integer = 0;
  double number = 0;
  const bool has_octal_look = text.size() > 1 && text[0] == '0';
  const bool is_integer =
      !has_octal_look && text.find(' ') == std::string::npos && absl::SimpleAtoi(text, &integer);
  const bool is_number =
      is_integer || (IsFloat(text) && absl::SimpleAtod(text, &number) && std::isfinite(number));
  return {is_number ? Kind::kNumber : Kind::kText, text};
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

// One pass over a file, where an alias can repeat all that it stands for.
class TreeReader {
 public:
  TreeReader(const std::string& section, std::vector<std::string>& notes)
      : section_(section), notes_(notes) {}

  absl::StatusOr<ConfigNode> Read(const YAML::Node& node, int depth) {
    const bool has_more = node.IsMap() || node.IsSequence();
    if (depth > kBlockDepthMax && has_more) return At(node.Mark(), "the blocks are too deep");
    if (++num_values_ > kMaxValues) return At(node.Mark(), "too many values");
    // "!" is the tag of what was quoted.
    ConfigNode tree = !node.IsScalar()    ? ConfigNode{}
                      : node.Tag() == "!" ? ConfigNode{ConfigNode::Kind::kText, node.Scalar()}
                                          : Plain(node.Scalar());
    tree.line = node.Mark().line + 1;
    if (node.IsMap()) {
      tree.kind = ConfigNode::Kind::kMap;
      MUSTER_ASSIGN_OR_RETURN(const std::vector<Entry> entries, EntriesOf(node, notes_));
      for (const Entry& entry : entries) {
        ConfigNode member;
        if (depth > 0 || section_.empty() || entry.key == section_) {
          MUSTER_ASSIGN_OR_RETURN(member, Read(entry.value, depth + 1));
        }
        member.line = entry.line;
        tree.members.push_back({entry.key, std::move(member)});
      }
    } else if (node.IsSequence()) {
      tree.kind = ConfigNode::Kind::kList;
      for (const YAML::Node& item : node) {
        MUSTER_ASSIGN_OR_RETURN(ConfigNode value, Read(item, depth + 1));
        tree.items.push_back(std::move(value));
      }
    }
    return tree;
  }

 private:
  const std::string& section_;
  std::vector<std::string>& notes_;
  size_t num_values_ = 0;
};

}  // namespace

absl::StatusOr<ConfigNode> ReadYamlTree(const std::string& text, std::vector<std::string>& notes,
                                        const std::string& section) {
  if (text.size() > kConfigBytesMax) return absl::InvalidArgumentError("is longer than a megabyte");
  try {  // the library's only way to say what is wrong is an exception
    const YAML::Node root = YAML::Load(std::string(absl::StripPrefix(text, kByteOrderMark)));
    if (!root.IsMap()) return absl::InvalidArgumentError(kNoMap);
    return TreeReader(section, notes).Read(root, 0);
  } catch (const YAML::Exception& error) {
    return At(error.mark, error.msg);
  }
}

std::string PythonText(const ConfigNode& node) {
  using Kind = ConfigNode::Kind;
  if (node.kind == Kind::kNull) return "None";
  if (node.kind == Kind::kBool) return node.IsTrue() ? "True" : "False";
  if (node.kind == Kind::kList) {
    return absl::StrCat("[",
                        absl::StrJoin(node.items, ", ",
                                      [](std::string* out, const auto& item) {
                                        const char* const quote =
                                            item.kind == Kind::kText ? "'" : "";
                                        absl::StrAppend(out, quote, PythonText(item), quote);
                                      }),
                        "]");
  }
  int64_t integer = 0;
  double number = 0;
  if (node.kind != Kind::kNumber) return node.text;
  if (absl::SimpleAtoi(node.text, &integer)) return absl::StrCat(integer);
  return absl::SimpleAtod(node.text, &number) ? Repr(number) : node.text;
}

}  // namespace muster
