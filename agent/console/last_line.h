// The last line of an output that may be of any length and hold anything.
//
// Threads: compatible.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::agent {

class LastLine {
 public:
  // What is kept of a line, in bytes: its beginning.
  static constexpr size_t kMaxBytes = 400;

  void Take(absl::string_view bytes);
  // The last line that is not blank, without escape sequences, control characters or blanks around
  // it; empty: there is none. A line needs no end.
  std::string Text() const;

 private:
  // Adds to the line that has not ended.
  void Append(absl::string_view bytes);

  std::string complete_;  // the last line that has ended and is not blank
  std::string current_;   // its successor, so far
};

}  // namespace muster::agent
