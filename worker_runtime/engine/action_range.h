// Actions of a step as ranges in a profiler's time line (NVTX: nsys and ncu show them), where one
// is attached and this was built with CUDA's headers.
#pragma once

#include "absl/strings/string_view.h"

namespace muster::engine {

// Lasts as long as it lives; those of one thread end in the reverse order.
//
// Cost: without a profiler, that of a call.
class ActionRange {
 public:
  explicit ActionRange(absl::string_view name);
  ~ActionRange();
  ActionRange(const ActionRange&) = delete;
  ActionRange& operator=(const ActionRange&) = delete;
};

}  // namespace muster::engine
