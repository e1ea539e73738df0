// How lists of names, durations and texts of others read in messages.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace muster {

// "a", "a and b", "a, b and c", "a, b, c and 5 more": `names` are the first of `count` in all.
std::string NamesInWords(absl::Span<const std::string> names, int count);

// "rank 3", "ranks 0-2, 5 and 7"; long lists are cut: "ranks 0, 2, 4, 6, 8, 10 and 94 more".
// `ranks` are sorted.
std::string RanksInWords(absl::Span<const int> ranks);

// What some editors put in front of a text in UTF-8; it means nothing there.
inline constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";

// `text` with the code of each character that nobody sees in its place: "<U+FEFF>". Blanks, tabs
// and line ends stay, as does what is no UTF-8 and no control character.
std::string ShowInvisible(absl::string_view text);

// What others have written may steer the terminal that shows it (ESC ]52 fills a clipboard). The
// three below are the one filter for it.
//
// Source: ECMA-48: C0, DEL, C1 (as U+0080 to U+009F or as one byte), CSI and SGR.

// A name for lines of a log: `?` stands in the place of each control character.
std::string WithoutControls(absl::string_view text);
// A name or a sentence for a terminal: the code of each control character, line ends too, stands in
// its place: "<U+001B>", or "<9B>" of a byte that is no UTF-8.
std::string ForTerminal(absl::string_view text);
// Lines for a terminal: the same, but line ends, tabs, carriage returns and colours (SGR) stay. A
// colour ends with the text.
std::string LinesForTerminal(absl::string_view text);

// What chooses a colour between "ESC [" and "m"; other characters make another sequence of it.
inline constexpr absl::string_view kColourParameters = "0123456789;:";

// Appends the character `code`, of Unicode, in UTF-8.
void AppendUtf8(uint32_t code, std::string& out);

// Rounded to what a person reads: "250ms", "6.3s", "12s", "10m0s" as "600s".
std::string InWords(absl::Duration duration);

}  // namespace muster
