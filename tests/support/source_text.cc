#include "tests/support/source_text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace muster::testing {
namespace {

class Reader {
 public:
  explicit Reader(absl::string_view text) : text_(text) {}

  SourceText Read() {
    while (at_ < text_.size()) {
      if (Has("//")) {
        ReadLineComment();
      } else if (Has("/*")) {
        ReadBlockComment();
      } else if (Has("R\"") && !IsInWord()) {
        ReadRawLiteral();
      } else if (text_[at_] == '"') {
        ReadLiteral('"');
      } else if (text_[at_] == '\'' && !IsInWord()) {  // not the separator of 1'000
        ReadLiteral('\'');
      } else {
        Keep(text_[at_++]);
      }
    }
    return std::move(source_);
  }

 private:
  bool Has(absl::string_view what) const { return absl::StartsWith(text_.substr(at_), what); }
  bool IsInWord() const { return at_ > 0 && absl::ascii_isalnum(text_[at_ - 1]); }

  void Keep(char c) {
    if (c == '\n') ++line_;
    source_.code.push_back(c);
  }
  // Blanks code up to `end`, so that lines keep their numbers.
  void Blank(size_t end) {
    for (; at_ < end; ++at_) Keep(text_[at_] == '\n' ? '\n' : ' ');
  }

  void ReadLineComment() {
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    source_.comments.push_back({line_, std::string(text_.substr(at_ + 2, end - at_ - 2))});
    Blank(end);
  }

  void ReadBlockComment() {
    const size_t found = text_.find("*/", at_ + 2);
    const size_t end = found == text_.npos ? text_.size() : found + 2;
    absl::string_view rest = text_.substr(at_, end - at_);
    for (int line = line_; !rest.empty(); ++line) {
      const size_t length = std::min(rest.find('\n'), rest.size());
      source_.comments.push_back({line, std::string(rest.substr(0, length))});
      rest.remove_prefix(std::min(length + 1, rest.size()));
    }
    Blank(end);
  }

  void ReadRawLiteral() {
    const size_t open = std::min(text_.find('(', at_), text_.size());
    const std::string close =
        ")" + std::string(text_.substr(at_ + 2, open - std::min(at_ + 2, open))) + "\"";
    const size_t found = text_.find(close, open);
    TakeLiteral(open + 1, found, found == text_.npos ? text_.size() : found + close.size());
  }

  void ReadLiteral(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    TakeLiteral(at_ + 1, end, end + 1);
  }

  // Keeps one quotation mark, so that a declaration still has a value.
  void TakeLiteral(size_t begin, size_t end, size_t next) {
    begin = std::min(begin, text_.size());
    end = std::min(end, text_.size());
    source_.literals += std::string(text_.substr(begin, end - begin)) + "\n";
    Keep('"');
    ++at_;
    Blank(std::min(next, text_.size()));
  }

  const absl::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  SourceText source_;
};

}  // namespace

SourceText ReadSource(absl::string_view text) { return Reader(text).Read(); }

std::vector<std::string> WordsIn(absl::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || c == '_') {
      word.push_back(c);
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

int Columns(absl::string_view line) {
  return static_cast<int>(std::count_if(line.begin(), line.end(), [](unsigned char c) {
    return (c & 0xC0) != 0x80;  // the first byte of a character
  }));
}

}  // namespace muster::testing
