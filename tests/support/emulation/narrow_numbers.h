// Numbers of 16 bits, or of f32, as those that the host computes in.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/dtype.h"

namespace muster::testing {

// A copy in float of [count] numbers that are stored as `type`.
std::vector<float> Widened(const void* from, int64_t count, DType type);

// Rounded to `type`.
void Store(const std::vector<float>& numbers, void* to, DType type);

}  // namespace muster::testing
