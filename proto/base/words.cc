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

struct Character {
  uint32_t code = 0;  // the byte itself, if it is no UTF-8
  size_t num_bytes = 1;
  bool is_utf8 = true;
};

Character FirstCharacter(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint32_t head = byte(0);
  if (head < 0x80) return {head};
  const size_t num_bytes = head >= 0xF0 ? 4 : head >= 0xE0 ? 3 : 2;
  bool is_utf8 = head >= 0xC0 && head < 0xF8 && num_bytes <= text.size();
  uint32_t code = head & (0x7Fu >> num_bytes);
  for (size_t i = 1; is_utf8 && i < num_bytes; ++i) {
    is_utf8 = (byte(i) & 0xC0) == 0x80;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (!is_utf8 || code < kLeast[num_bytes]) return {.code = head, .is_utf8 = false};
  return {code, num_bytes};
}

bool IsControl(const Character& c) { return c.code < 0x20 || (c.code >= 0x7F && c.code <= 0x9F); }

// Controls, blanks that are not the usual one, marks of direction and of width 0.
// Source: Unicode 15, categories Cc, Cf, Zs, Zl and Zp below U+10000, the common ones.
bool IsInvisible(const Character& c) {
  if (IsControl(c)) return c.code != '\t' && c.code != '\n';
  constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0xA0, 0xA0},     {0xAD, 0xAD},     {0x2000, 0x200F}, {0x2028, 0x202F},
      {0x205F, 0x2064}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return c.is_utf8 && std::any_of(std::begin(kRanges), std::end(kRanges), [&](const auto& range) {
           return range.first <= c.code && c.code <= range.second;
         });
}

// `text` with the codes of those characters of which `is_shown` is true.
template <typename Shown>
std::string WithCodes(absl::string_view text, Shown is_shown) {
  std::string out;
  while (!text.empty()) {
    const Character c = FirstCharacter(text);
    if (!is_shown(c)) {
      absl::StrAppend(&out, text.substr(0, c.num_bytes));
    } else if (c.is_utf8) {
      absl::StrAppendFormat(&out, "<U+%04X>", c.code);
    } else {
      absl::StrAppendFormat(&out, "<%02X>", c.code);
    }
    text.remove_prefix(c.num_bytes);
  }
  return out;
}

// The length of a choice of colours that `text` begins with; 0: it begins with none.
size_t ColourBytes(absl::string_view text) {
  constexpr size_t kBytesMax = 64;
  if (text.substr(0, 2) != "\x1b[") return 0;
  const size_t end = text.find_first_not_of(kColourParameters, 2);
  return end < std::min(text.size(), kBytesMax) && text[end] == 'm' ? end + 1 : 0;
}

}  // namespace

std::string ShowInvisible(absl::string_view text) { return WithCodes(text, IsInvisible); }

std::string WithoutControls(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character c = FirstCharacter(text);
    absl::StrAppend(&out, IsControl(c) ? "?" : text.substr(0, c.num_bytes));
    text.remove_prefix(c.num_bytes);
  }
  return out;
}

std::string ForTerminal(absl::string_view text) { return WithCodes(text, IsControl); }

std::string LinesForTerminal(absl::string_view text) {
  constexpr absl::string_view kReset = "\x1b[0m";
  const auto is_shown = [](const Character& c) {
    return IsControl(c) && c.code != '\t' && c.code != '\n' && c.code != '\r';
  };
  std::string out;
  bool is_coloured = false;
  for (size_t begin = 0; begin < text.size();) {
    const size_t bytes = ColourBytes(text.substr(begin));
    const size_t end =
        bytes > 0 ? begin + bytes : std::min(text.find('\x1b', begin + 1), text.size());
    const absl::string_view part = text.substr(begin, end - begin);
    if (bytes > 0) {
      is_coloured = part.find_first_not_of("0", 2) != part.size() - 1;
      absl::StrAppend(&out, part);
    } else {
      absl::StrAppend(&out, WithCodes(part, is_shown));
    }
    begin = end;
  }
  return is_coloured ? absl::StrCat(out, kReset) : out;
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
