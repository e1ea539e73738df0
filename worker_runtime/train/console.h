// What muster-train prints on its standard output.
#pragma once

#include "absl/strings/string_view.h"

namespace muster::train {

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

}  // namespace muster::train
