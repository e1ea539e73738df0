// C++ sources as a test of the tree reads them: code and comments apart.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster::testing {

struct Comment {
  int line = 0;      // from 1
  std::string text;  // without its slashes
};

struct SourceText {
  // The source without comments and with the contents of string and character literals blanked.
  // Lines keep their numbers.
  std::string code;
  std::vector<Comment> comments;  // one per line of a comment, in their order
  std::string literals;           // the contents of all string literals, each with a newline
};

// Reads any text: an unfinished literal or comment ends with the text.
SourceText ReadSource(absl::string_view text);

// Maximal runs of letters, digits and underscores, in their order.
std::vector<std::string> WordsIn(absl::string_view text);

// Number of characters of a UTF-8 line.
int Columns(absl::string_view line);

}  // namespace muster::testing
