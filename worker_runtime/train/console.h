// What muster-train prints on its standard output.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace muster::train {

// What is printed on the way and at the end.
struct PrintOptions {
  int64_t log_every = 0;  // steps per line; 0: ProgressLine chooses
  bool quiet = false;     // failures alone, and the hash if asked for
  bool hash = false;      // of the parameters, as the last line
};

// One rank speaks for all. Each text goes out at once, since behind a launcher the output is a
// pipe, and with no control characters, since that pipe ends in a log.
//
// Threads: thread-compatible.
class Console {
 public:
  explicit Console(bool speaks) : speaks_(speaks) {}

  bool speaks() const { return speaks_; }
  // `text` ends with \n. A closed or full output is not the training's concern.
  void Print(absl::string_view text) const;

 private:
  const bool speaks_;
};

// Whether text in the locale that the first non-empty of LC_ALL, LC_CTYPE and LANG names is UTF-8.
bool IsUtf8Locale(absl::string_view lc_all, absl::string_view lc_ctype, absl::string_view lang);
// The same by the locale in the environment.
bool TerminalIsUtf8();

}  // namespace muster::train
