// The host's kernels for arrays of 16 bits.
#pragma once

#include "muster/device.h"
#include "muster/tensor.h"

namespace muster {

struct Operations;

// Each widens what it reads of 16 bits, computes in f32 and rounds what it writes, once. Arrays of
// f32 may stand beside those of 16 bits: gradients of weights, statistics of rows.
const Operations& NarrowOperations();

// Between f32, bf16 and f16, and copies of one type.
void CastElements(Queue& queue, const Tensor& from, const Tensor& to);

}  // namespace muster
