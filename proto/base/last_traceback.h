// The place of Python's last traceback in what a program has printed.
//
// Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

struct LastTraceback {
  size_t begin = 0;       // of its first line, "Traceback (most recent call last):"
  size_t end = 0;         // behind the line that names the exception
  std::string exception;  // that line, without what stands before each of the traceback's lines
  friend bool operator==(const LastTraceback&, const LastTraceback&) = default;
};

// None if there is none, or its exception is not named. PyTorch begins each line with "[rank3]: ".
std::optional<LastTraceback> FindLastTraceback(absl::string_view output);

}  // namespace muster
