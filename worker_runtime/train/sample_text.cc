#include "worker_runtime/train/sample_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace muster::train {
namespace {

bool IsContinuation(unsigned byte) { return (byte & 0xC0) == 0x80; }

// The length of the UTF-8 character at the front of `bytes`, 0 if there is none that may be
// printed. Source: the Unicode Standard, table 3-7 (well-formed UTF-8); U+0080 to U+009F are
// control characters.
size_t PrintableCharacter(absl::Span<const int32_t> bytes) {
  const unsigned first = bytes[0];
  if (first == '\n' || first == '\t' || (first >= 0x20 && first < 0x7F)) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || bytes.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!IsContinuation(bytes[i])) return 0;
  }
  const unsigned second = bytes[1];
  if (first == 0xC2 && second < 0xA0) return 0;
  if (first == 0xE0 && second < 0xA0) return 0;
  if (first == 0xED && second > 0x9F) return 0;
  if (first == 0xF0 && second < 0x90) return 0;
  if (first == 0xF4 && second > 0x8F) return 0;
  // U+2028 to U+202E break lines and turn the direction of writing, U+2066 to U+2069 too.
  if (first == 0xE2 && second == 0x80 && bytes[2] >= 0xA8 && bytes[2] <= 0xAE) return 0;
  if (first == 0xE2 && second == 0x81 && bytes[2] >= 0xA6 && bytes[2] <= 0xA9) return 0;
  return length;
}

}  // namespace

std::string PrintableText(absl::Span<const int32_t> bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t length = PrintableCharacter(bytes);
    if (length == 0) {
      absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned>(bytes[0]));
      bytes.remove_prefix(1);
      continue;
    }
    for (const int32_t byte : bytes.first(length)) text.push_back(static_cast<char>(byte));
    bytes.remove_prefix(length);
  }
  return text;
}

std::string PrintableIds(absl::Span<const int32_t> ids, int columns) {
  std::string text;
  size_t line_start = 0;
  for (const int32_t id : ids) {
    const std::string word = absl::StrCat(id);
    if (text.size() > line_start) {
      const bool fits = text.size() - line_start + 1 + word.size() <= static_cast<size_t>(columns);
      text.push_back(fits ? ' ' : '\n');
      if (!fits) line_start = text.size();
    }
    text += word;
  }
  return text;
}

std::string Indented(absl::string_view text, absl::string_view margin) {
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::string out;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::StrAppend(&out, margin, line, "\n");
  }
  return out;
}

}  // namespace muster::train
