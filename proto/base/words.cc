#include "proto/base/words.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace muster {

namespace {

// The character that `text` begins with, of up to three bytes; 0: none, or a longer one.
uint32_t FirstCharacter(absl::string_view text, size_t& num_bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto goes_on = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  num_bytes = 1;
  if (byte(0) < 0x80) return byte(0);
  if ((byte(0) & 0xE0) == 0xC0 && goes_on(1)) {
    num_bytes = 2;
    return (byte(0) & 0x1Fu) << 6 | (byte(1) & 0x3Fu);
  }
  if ((byte(0) & 0xF0) != 0xE0 || !goes_on(1) || !goes_on(2)) return 0;
  num_bytes = 3;
  return (byte(0) & 0x0Fu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
}

// Controls, blanks that are not the usual one, marks of direction and of width 0.
// Source: Unicode 15, categories Cc, Cf, Zs, Zl and Zp below U+10000, the common ones.
bool IsInvisible(uint32_t code) {
  constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0x01, 0x08},     {0x0B, 0x1F},     {0x7F, 0xA0},     {0xAD, 0xAD},    {0x2000, 0x200F},
      {0x2028, 0x202F}, {0x205F, 0x2064}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return std::any_of(std::begin(kRanges), std::end(kRanges), [code](const auto& range) {
    return range.first <= code && code <= range.second;
  });
}

}  // namespace

std::string ShowInvisible(absl::string_view text) {
  std::string shown;
  while (!text.empty()) {
    size_t num_bytes = 1;
    const uint32_t code = FirstCharacter(text, num_bytes);
    if (IsInvisible(code)) {
      absl::StrAppendFormat(&shown, "<U+%04X>", code);
    } else {
      absl::StrAppend(&shown, text.substr(0, num_bytes));
    }
    text.remove_prefix(num_bytes);
  }
  return shown;
}

void AppendUtf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
    return;
  }
  const int following = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr uint32_t kHeads[] = {0, 0xC0, 0xE0, 0xF0};
  out.push_back(static_cast<char>(kHeads[following] | (code >> (6 * following))));
  for (int i = following - 1; i >= 0; --i) {
    out.push_back(static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F)));
  }
}

std::string NamesInWords(absl::Span<const std::string> names, int count) {
  const int more = count - static_cast<int>(names.size());
  if (more > 0) return absl::StrCat(absl::StrJoin(names, ", "), " and ", more, " more");
  if (names.size() < 2) return absl::StrJoin(names, "");
  return absl::StrCat(absl::StrJoin(names.first(names.size() - 1), ", "), " and ", names.back());
}

std::string RanksInWords(absl::Span<const int> ranks) {
  constexpr size_t kRunsMax = 6;
  std::vector<std::string> runs;
  size_t named = 0;
  for (size_t begin = 0; begin < ranks.size() && runs.size() < kRunsMax;) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin == 2) --end;  // "0 and 1" reads better than "0-1"
    runs.push_back(end - begin > 1 ? absl::StrCat(ranks[begin], "-", ranks[end - 1])
                                   : absl::StrCat(ranks[begin]));
    named += end - begin;
    begin = end;
  }
  const size_t untold = ranks.size() - named;
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      NamesInWords(runs, static_cast<int>(runs.size() + untold)));
}

std::string InWords(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds < 1) return absl::StrFormat("%.0fms", seconds * 1e3);
  if (seconds < 10) return absl::StrFormat("%gs", std::round(seconds * 10) / 10);
  return absl::StrFormat("%.0fs", seconds);
}

}  // namespace muster
