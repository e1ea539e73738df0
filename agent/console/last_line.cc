#include "agent/console/last_line.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

constexpr char kEscape = '\x1b';
constexpr char kLineEnds[] = "\r\n";

// The bytes of the escape sequence that `text` begins with; a sequence that does not end takes all.
//
// Source: ECMA-48: CSI (ESC [ … a byte from @ to ~); OSC and its kin (ESC ] … BEL or ESC \); else
//         bytes from blank to /, and another.
size_t LengthOfSequence(absl::string_view text) {
  if (text.size() < 2) return text.size();
  size_t i = 2;
  if (text[1] == '[') {
    while (i < text.size() && (text[i] < '@' || text[i] > '~')) ++i;
    return std::min(i + 1, text.size());
  }
  if (text[1] == ']' || text[1] == 'P' || text[1] == '^' || text[1] == '_') {
    while (i < text.size() && text[i] != '\a' && text[i] != kEscape) ++i;
    const bool has_terminator = i + 1 < text.size() && text[i] == kEscape && text[i + 1] == '\\';
    return std::min(i + (has_terminator ? 2 : 1), text.size());
  }
  i = 1;
  while (i < text.size() && text[i] >= ' ' && text[i] <= '/') ++i;
  return std::min(i + 1, text.size());
}

// A tab becomes a blank; the other control characters go.
std::string WithoutSequences(absl::string_view text) {
  std::string plain;
  while (!text.empty()) {
    if (text.front() == kEscape) {
      text.remove_prefix(LengthOfSequence(text));
      continue;
    }
    if (text.front() == '\t') plain.push_back(' ');
    if (!absl::ascii_iscntrl(text.front())) plain.push_back(text.front());
    text.remove_prefix(1);
  }
  return plain;
}

std::string Readable(absl::string_view line) {
  const std::string plain = WithoutControls(WithoutSequences(line));
  return std::string(absl::StripAsciiWhitespace(plain));
}

}  // namespace

// A gigabyte of lines costs little: from the end backwards, up to the first that is not blank.
void LastLine::Take(absl::string_view bytes) {
  const size_t end = bytes.find_last_of(kLineEnds);
  if (end == absl::string_view::npos) return Append(bytes);
  absl::string_view ended = bytes.substr(0, end);
  std::string text;
  while (text.empty()) {
    const size_t start = ended.find_last_of(kLineEnds);
    if (start == absl::string_view::npos) {
      Append(ended);
      text = Readable(current_);
      break;
    }
    const absl::string_view line = ended.substr(start + 1, kMaxBytes);
    if (!line.empty()) text = Readable(line);
    ended = ended.substr(0, start);
  }
  if (!text.empty()) complete_ = std::move(text);
  current_.clear();
  Append(bytes.substr(end + 1));
}

std::string LastLine::Text() const {
  std::string text = Readable(current_);
  return text.empty() ? complete_ : text;
}

void LastLine::Append(absl::string_view bytes) {
  absl::StrAppend(&current_, bytes.substr(0, kMaxBytes - current_.size()));
}

}  // namespace muster::agent
