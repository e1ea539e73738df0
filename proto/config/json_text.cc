#include "proto/config/json_text.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int kMaxDepth = 32;

using Kind = ConfigNode::Kind;

void AppendUtf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// JSON's grammar: no plus in front, no leading zeros. Python's reader knows NaN and Infinity too,
// which are no numbers of a configuration.
bool IsNumber(absl::string_view text) {
  absl::string_view digits = text;
  if (!digits.empty() && digits[0] == '-') digits.remove_prefix(1);
  if (digits.empty() || !absl::ascii_isdigit(digits[0])) return false;
  if (digits.size() > 1 && digits[0] == '0' && absl::ascii_isdigit(digits[1])) return false;
  if (digits.find_first_not_of("0123456789.eE+-") != absl::string_view::npos) return false;
  double value = 0;
  return absl::SimpleAtod(text, &value) && std::isfinite(value);
}

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  absl::StatusOr<ConfigNode> Read() {
    MUSTER_RETURN_IF_ERROR(SkipBlanks());
    MUSTER_ASSIGN_OR_RETURN(ConfigNode root, Value(0));
    MUSTER_RETURN_IF_ERROR(SkipBlanks());
    if (next_ < text_.size()) return Wrong("something follows the end of the value");
    return root;
  }

 private:
  absl::Status Wrong(absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", why));
  }
  char Peek() const { return next_ < text_.size() ? text_[next_] : '\0'; }
  void Step() {
    if (text_[next_++] == '\n') ++line_;
  }
  bool Take(char c) {
    if (Peek() != c) return false;
    Step();
    return true;
  }
  bool At(absl::string_view word) const {
    return absl::StartsWith(absl::string_view(text_).substr(next_), word);
  }

  absl::Status SkipBlanks() {
    for (;;) {
      while (next_ < text_.size() && absl::ascii_isspace(text_[next_])) Step();
      if (At("//") || At("#")) {
        while (next_ < text_.size() && text_[next_] != '\n') Step();
      } else if (At("/*")) {
        const size_t end = text_.find("*/", next_ + 2);
        if (end == std::string::npos) return Wrong("a comment /* has no end");
        while (next_ < end + 2) Step();
      } else {
        return absl::OkStatus();
      }
    }
  }

  absl::StatusOr<ConfigNode> Value(int depth) {
    if (depth > kMaxDepth) {
      return Wrong(absl::StrCat("values are nested deeper than ", kMaxDepth, " levels"));
    }
    ConfigNode node;
    node.line = line_;
    if (Peek() == '{') return Map(depth, std::move(node));
    if (Peek() == '[') return List(depth, std::move(node));
    if (Peek() == '"') {
      node.kind = Kind::kText;
      MUSTER_ASSIGN_OR_RETURN(node.text, Text());
      return node;
    }
    const size_t begin = next_;
    while (absl::ascii_isalnum(Peek()) || absl::StrContains("+-._", std::string(1, Peek()))) {
      if (Peek() == '\0') break;
      Step();
    }
    node.text = text_.substr(begin, next_ - begin);
    if (node.text == "null") {
      node.text.clear();
    } else if (node.text == "true" || node.text == "false") {
      node.kind = Kind::kBool;
    } else if (IsNumber(node.text)) {
      node.kind = Kind::kNumber;
    } else if (node.text.empty()) {
      return Wrong(next_ < text_.size()
                       ? absl::StrCat("expected a value, not '",
                                      absl::CHexEscape(std::string(1, Peek())), "'")
                       : std::string("the text ends where a value should be"));
    } else {
      return Wrong(absl::StrCat("'", absl::Utf8SafeCHexEscape(node.text.substr(0, 40)),
                                "' is no value of JSON; a text stands in quotes"));
    }
    return node;
  }

  absl::StatusOr<ConfigNode> Map(int depth, ConfigNode node) {
    node.kind = Kind::kMap;
    Step();
    MUSTER_RETURN_IF_ERROR(SkipBlanks());
    while (!Take('}')) {
      if (Peek() != '"') return Wrong("expected a key in quotes, or }");
      const int line = line_;
      MUSTER_ASSIGN_OR_RETURN(std::string key, Text());
      if (const ConfigNode* first = node.Find(key)) {
        return Wrong(absl::StrCat("the key '", absl::Utf8SafeCHexEscape(key),
                                  "' is there twice, first on line ", first->line));
      }
      MUSTER_RETURN_IF_ERROR(SkipBlanks());
      if (!Take(':')) {
        return Wrong(
            absl::StrCat("expected : behind the key '", absl::Utf8SafeCHexEscape(key), "'"));
      }
      MUSTER_RETURN_IF_ERROR(SkipBlanks());
      MUSTER_ASSIGN_OR_RETURN(ConfigNode value, Value(depth + 1));
      value.line = line;
      node.members.push_back({std::move(key), std::move(value)});
      MUSTER_RETURN_IF_ERROR(SkipBlanks());
      if (Take(',')) {
        MUSTER_RETURN_IF_ERROR(SkipBlanks());
      } else if (Peek() != '}') {
        return Wrong("expected , or } behind a value");
      }
    }
    return node;
  }

  absl::StatusOr<ConfigNode> List(int depth, ConfigNode node) {
    node.kind = Kind::kList;
    Step();
    MUSTER_RETURN_IF_ERROR(SkipBlanks());
    while (!Take(']')) {
      MUSTER_ASSIGN_OR_RETURN(ConfigNode value, Value(depth + 1));
      node.items.push_back(std::move(value));
      MUSTER_RETURN_IF_ERROR(SkipBlanks());
      if (Take(',')) {
        MUSTER_RETURN_IF_ERROR(SkipBlanks());
      } else if (Peek() != ']') {
        return Wrong("expected , or ] behind a value");
      }
    }
    return node;
  }

  absl::StatusOr<std::string> Text() {
    Step();
    std::string out;
    while (next_ < text_.size() && text_[next_] != '"') {
      if (text_[next_] == '\n') return Wrong("a text in quotes has no end on its line");
      if (text_[next_] != '\\') {
        out += text_[next_];
        Step();
        continue;
      }
      Step();
      MUSTER_RETURN_IF_ERROR(Escape(out));
    }
    if (!Take('"')) return Wrong("a text in quotes has no end");
    return out;
  }

  absl::Status Escape(std::string& out) {
    constexpr absl::string_view kNames = "\"\\/bfnrt";
    constexpr absl::string_view kValues = "\"\\/\b\f\n\r\t";
    const char name = Peek();
    if (const size_t i = kNames.find(name); name != '\0' && i != absl::string_view::npos) {
      out += kValues[i];
      Step();
      return absl::OkStatus();
    }
    uint32_t code = 0;
    const std::string digits = text_.substr(std::min(next_ + 1, text_.size()), 4);
    if (name != 'u' || digits.size() != 4 || !absl::SimpleHexAtoi(digits, &code)) {
      return Wrong("a \\ in a text is followed by no escape of JSON");
    }
    for (int i = 0; i < 5; ++i) Step();
    AppendUtf8(code, out);
    return absl::OkStatus();
  }

  const std::string& text_;
  size_t next_ = 0;
  int line_ = 1;
};

}  // namespace

absl::StatusOr<ConfigNode> ReadJson(const std::string& text) {
  if (text.size() > kMaxBytes) return absl::InvalidArgumentError("it is longer than a megabyte");
  return Reader(text).Read();
}

}  // namespace muster
