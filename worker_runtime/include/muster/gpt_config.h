// The sizes of a GPT.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace muster {

struct GptConfig {
  int64_t layers = 6;
  int64_t heads = 6;
  int64_t hidden_size = 384;
  int64_t context = 256;
  int64_t vocabulary = 256;  // bytes

  friend bool operator==(const GptConfig&, const GptConfig&) = default;

  // kInvalidArgument with the value, what was expected and a hint.
  absl::Status Validate() const;
  int64_t num_parameters() const;
};

}  // namespace muster
