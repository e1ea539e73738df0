// What a forward pass keeps for its backward pass, and what that computes again instead: memory for
// time, never another number.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace muster {

struct Recompute {
  enum class Kind : uint8_t {
    kNone,       // everything is kept
    kSelective,  // but for what takes much memory and little time: activation functions
    kFull,       // of each `layers` neighbouring layers only their input is kept
  };
  Kind kind = Kind::kNone;
  int64_t layers = 1;  // of kFull

  friend bool operator==(const Recompute&, const Recompute&) = default;
};
absl::string_view ToString(Recompute::Kind kind);

}  // namespace muster
