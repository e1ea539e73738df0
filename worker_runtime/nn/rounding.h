// The host twin of the kernels that round by draws (kernels/rounding.h).
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "worker_runtime/kernels/rounding.h"

namespace muster {

// values [masters.size()] of bf16, as they follow `masters` after update number `updates`.
//
// Threads: thread-safe.
void RoundByDraws(absl::Span<const float> masters, kernels::RoundingDraws draws, int64_t updates,
                  uint16_t* values);

}  // namespace muster
