#include "proto/config/json_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "proto/base/words.h"

namespace muster {
namespace {

constexpr int kNestingMax = 32;
constexpr size_t kBeginningShown = 40;

using Kind = ConfigNode::Kind;

// The first of each; there are 1024. A high one and a low one make a character beyond 0xffff.
constexpr uint32_t kHighSurrogates = 0xd800;
constexpr uint32_t kLowSurrogates = 0xdc00;

bool IsWithin(uint32_t code, uint32_t first) { return first <= code && code < first + 1024; }

// JSON's grammar: no plus in front, no leading zeros, digits on both sides of a point. Python's
// reader knows NaN and Infinity too, which are no numbers of a configuration.
bool IsNumber(absl::string_view text) {
  const std::string whole(text);
  const auto skip_digits = [&text] {
    const size_t before = text.size();
    while (!text.empty() && absl::ascii_isdigit(text[0])) text.remove_prefix(1);
    return before - text.size();
  };
  absl::ConsumePrefix(&text, "-");
  const bool begins_with_zero = absl::StartsWith(text, "0");
  const size_t num_digits = skip_digits();
  if (num_digits == 0 || (begins_with_zero && num_digits > 1)) return false;
  if (absl::ConsumePrefix(&text, ".") && skip_digits() == 0) return false;
  if (absl::ConsumePrefix(&text, "e") || absl::ConsumePrefix(&text, "E")) {
    if (!absl::ConsumePrefix(&text, "+")) absl::ConsumePrefix(&text, "-");
    if (skip_digits() == 0) return false;
  }
  double value = 0;
  return text.empty() && absl::SimpleAtod(whole, &value) && std::isfinite(value);
}

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  absl::StatusOr<ConfigNode> Read() {
    if (At(kByteOrderMark)) next_ = kByteOrderMark.size();
    MUSTER_RETURN_IF_ERROR(SkipBlanks());
    if (IsAtEnd()) return Wrong("the text ends where a value should be");
    ConfigNode root;
    root.line = line_;
    if (Peek() != '{' && Peek() != '[') return Members(0, std::move(root), /*has_braces=*/false);
    MUSTER_ASSIGN_OR_RETURN(root, Value(0));
    MUSTER_RETURN_IF_ERROR(SkipBlanks());
    if (!IsAtEnd()) return Wrong("something follows the end of the value");
    return root;
  }

 private:
  absl::Status Wrong(absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", why));
  }
  absl::Status WrongEnd(absl::string_view why) const {
    return Wrong(absl::StrCat(why, long_text_.empty()
                                       ? ""
                                       : absl::StrCat("; a text without quotes goes to the end of "
                                                      "its line, as '",
                                                      long_text_, "'")));
  }
  bool IsAtEnd() const { return next_ >= text_.size(); }
  char Peek() const { return IsAtEnd() ? '\0' : text_[next_]; }
  void Step() {
    if (text_[next_++] == '\n') ++line_;
  }
  bool Take(char c) {
    if (IsAtEnd() || Peek() != c) return false;
    Step();
    return true;
  }
  bool At(absl::string_view word) const {
    return absl::StartsWith(absl::string_view(text_).substr(next_), word);
  }
  bool IsAtOneOf(absl::string_view set) const {
    return !IsAtEnd() && absl::StrContains(set, Peek());
  }

  absl::Status SkipBlanks() {
    for (;;) {
      while (IsAtOneOf(" \t\r\n")) Step();
      if (At("//") || At("#")) {
        while (!IsAtEnd() && !IsAtOneOf("\r\n")) Step();
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
    if (depth > kNestingMax) {
      return Wrong(absl::StrCat("values are nested deeper than ", kNestingMax, " levels"));
    }
    ConfigNode node;
    node.line = line_;
    if (Take('{')) return Members(depth, std::move(node), /*has_braces=*/true);
    if (Take('[')) return List(depth, std::move(node));
    if (!IsAtOneOf("\"'")) return WithoutQuotes(std::move(node));
    node.kind = Kind::kText;
    if (At("'''")) {
      MUSTER_ASSIGN_OR_RETURN(node.text, LinesOfText());
    } else {
      MUSTER_ASSIGN_OR_RETURN(node.text, Text());
    }
    return node;
  }

  // null, true, false and numbers end where JSON has them end; what is none of these is a text that
  // goes to the end of the line, with all that stands there.
  absl::StatusOr<ConfigNode> WithoutQuotes(ConfigNode node) {
    if (IsAtEnd()) return WrongEnd("the text ends where a value should be");
    if (IsAtOneOf("}],:")) return Wrong(absl::StrCat("expected a value, not '", Here(), "'"));
    const size_t begin = next_;
    for (;; ++next_) {
      const bool is_end_of_line = IsAtEnd() || IsAtOneOf("\r\n");
      if (!is_end_of_line && !IsAtOneOf(",}]#") && !At("//") && !At("/*")) continue;
      node.text = std::string(absl::StripAsciiWhitespace(text_.substr(begin, next_ - begin)));
      if (node.text == "null") {
        node.text.clear();
        return node;
      }
      node.kind = node.text == "true" || node.text == "false" ? Kind::kBool
                  : IsNumber(node.text)                       ? Kind::kNumber
                                                              : Kind::kText;
      if (node.kind != Kind::kText) return node;
      if (!is_end_of_line) continue;
      if (node.text.find_first_of(",}]") != std::string::npos) long_text_ = Shown(node.text);
      return node;
    }
  }

  // `has_braces`: the first has been taken. Commas between members are as good as none.
  absl::StatusOr<ConfigNode> Members(int depth, ConfigNode node, bool has_braces) {
    node.kind = Kind::kMap;
    MUSTER_RETURN_IF_ERROR(SkipBlanks());
    while (has_braces ? !Take('}') : !IsAtEnd()) {
      const int line = line_;
      if (IsAtEnd()) return WrongEnd(absl::StrCat("the { of line ", node.line, " has no end"));
      MUSTER_ASSIGN_OR_RETURN(std::string key, Key());
      if (const ConfigNode* first = node.Find(key)) {
        return Wrong(
            absl::StrCat("the key '", Shown(key), "' is there twice, first on line ", first->line));
      }
      MUSTER_RETURN_IF_ERROR(SkipBlanks());
      if (!Take(':')) return Wrong(absl::StrCat("expected : behind the key '", Shown(key), "'"));
      MUSTER_RETURN_IF_ERROR(SkipBlanks());
      MUSTER_ASSIGN_OR_RETURN(ConfigNode value, Value(depth + 1));
      value.line = line;
      node.members.push_back({std::move(key), std::move(value)});
      MUSTER_RETURN_IF_ERROR(SkipBlanks());
      if (Take(',')) MUSTER_RETURN_IF_ERROR(SkipBlanks());
    }
    return node;
  }

  absl::StatusOr<ConfigNode> List(int depth, ConfigNode node) {
    node.kind = Kind::kList;
    MUSTER_RETURN_IF_ERROR(SkipBlanks());
    while (!Take(']')) {
      if (IsAtEnd()) return WrongEnd(absl::StrCat("the [ of line ", node.line, " has no end"));
      MUSTER_ASSIGN_OR_RETURN(ConfigNode value, Value(depth + 1));
      node.items.push_back(std::move(value));
      MUSTER_RETURN_IF_ERROR(SkipBlanks());
      if (Take(',')) MUSTER_RETURN_IF_ERROR(SkipBlanks());
    }
    return node;
  }

  absl::StatusOr<std::string> Key() {
    if (IsAtOneOf("\"'")) return Text();
    const size_t begin = next_;
    while (!IsAtEnd() && !IsAtOneOf(":{}[], \t\r\n")) Step();
    std::string key = text_.substr(begin, next_ - begin);
    while (IsAtOneOf(" \t\r\n")) Step();
    if (Peek() == ':' && !key.empty()) return key;
    if (key.empty()) return Wrong(absl::StrCat("expected a key, not '", Here(), "'"));
    return Wrong(absl::StrCat("expected : behind the key '", Shown(key),
                              "'; one with blanks stands in quotes"));
  }

  absl::StatusOr<std::string> Text() {
    const char quote = Peek();
    Step();
    std::string out;
    while (!IsAtEnd() && Peek() != quote) {
      const char c = Peek();
      if (c == '\n' || c == '\r') return Wrong("a text in quotes has no end on its line");
      if (absl::ascii_iscntrl(c) && c != '\x7f') {
        return Wrong(
            absl::StrCat("a text in quotes has ", Here(), " in it; write it as an escape"));
      }
      Step();
      if (c != '\\') {
        out += c;
      } else {
        MUSTER_RETURN_IF_ERROR(Escape(out));
      }
    }
    if (!Take(quote)) return Wrong("a text in quotes has no end");
    return out;
  }

  // A text between ''' and ''', whose lines lose what the first of these is indented by.
  absl::StatusOr<std::string> LinesOfText() {
    const size_t line_before = next_ == 0 ? std::string::npos : text_.rfind('\n', next_ - 1);
    const size_t indentation = line_before == std::string::npos ? next_ : next_ - line_before - 1;
    const auto skip_blanks = [&](size_t most) {
      for (; most > 0 && IsAtOneOf(" \t\r"); --most) Step();
    };
    next_ += 3;
    skip_blanks(std::string::npos);
    if (Take('\n')) skip_blanks(indentation);
    std::string out;
    while (!At("'''")) {
      if (IsAtEnd()) return Wrong("a text in ''' has no end");
      const char c = Peek();
      Step();
      if (c != '\r') out += c;
      if (c == '\n') skip_blanks(indentation);
    }
    next_ += 3;
    if (absl::EndsWith(out, "\n")) out.pop_back();
    return out;
  }

  absl::Status Escape(std::string& out) {
    constexpr absl::string_view kNames = "\"'\\/bfnrt";
    constexpr absl::string_view kValues = "\"'\\/\b\f\n\r\t";
    const char name = Peek();
    if (const size_t i = kNames.find(name); name != '\0' && i != absl::string_view::npos) {
      out += kValues[i];
      Step();
      return absl::OkStatus();
    }
    const std::optional<uint32_t> code = TakeCodeUnit();
    if (!code) return Wrong("a \\ in a text is followed by no escape of JSON");
    if (!IsWithin(*code, kHighSurrogates) && !IsWithin(*code, kLowSurrogates)) {
      AppendUtf8(*code, out);
      return absl::OkStatus();
    }
    const bool is_high = IsWithin(*code, kHighSurrogates);
    const std::optional<uint32_t> low = is_high && Take('\\') ? TakeCodeUnit() : std::nullopt;
    if (!low || !IsWithin(*low, kLowSurrogates)) {
      return Wrong("a \\u of a text is half of a surrogate pair, and the other half is missing");
    }
    AppendUtf8(0x10000 + ((*code - kHighSurrogates) << 10) + (*low - kLowSurrogates), out);
    return absl::OkStatus();
  }

  // The u and its four digits, if they come next.
  std::optional<uint32_t> TakeCodeUnit() {
    const absl::string_view digits =
        absl::string_view(text_).substr(std::min(next_ + 1, text_.size()), 4);
    uint32_t code = 0;
    const bool are_hex = digits.size() == 4 && absl::c_all_of(digits, absl::ascii_isxdigit);
    if (Peek() != 'u' || !are_hex || !absl::SimpleHexAtoi(digits, &code)) return std::nullopt;
    for (int i = 0; i < 5; ++i) Step();
    return code;
  }

  // The beginning of what somebody wrote.
  static std::string Shown(absl::string_view text) {
    return absl::Utf8SafeCHexEscape(text.substr(0, kBeginningShown));
  }
  std::string Here() const { return absl::CHexEscape(std::string(1, Peek())); }

  const std::string& text_;
  size_t next_ = 0;
  int line_ = 1;
  std::string long_text_;  // without quotes, with what may have been meant to follow it
};

}  // namespace

absl::StatusOr<ConfigNode> ReadJson(const std::string& text) {
  if (text.size() > kConfigBytesMax)
    return absl::InvalidArgumentError("it is longer than a megabyte");
  return Reader(text).Read();
}

}  // namespace muster
