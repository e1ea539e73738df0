// Tokens that a model wrote, as something that may be printed on a terminal.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster::train {

// Vocabularies up to this size are bytes of text.
inline constexpr int64_t kByteVocabulary = 256;

// Ids in [0, 256) as text: whole UTF-8 characters and line ends stay; every other byte (control
// characters, which could steer a terminal, and cut or wrong UTF-8) becomes "\xNN".
std::string PrintableText(absl::Span<const int32_t> bytes);

// Any ids as numbers, several to a line of at most `columns` characters.
std::string PrintableIds(absl::Span<const int32_t> ids, int columns = 80);

// `text` with `margin` before each of its lines, and a line end after the last.
std::string Indented(absl::string_view text, absl::string_view margin);

}  // namespace muster::train
