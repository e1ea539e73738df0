// What makes a gradient not a number.
#pragma once

#include "muster/tensor.h"

namespace muster::engine {

// No element is an infinity or NaN.
// The elements are in memory that the host reads.
bool IsFinite(const Tensor& elements);

}  // namespace muster::engine
