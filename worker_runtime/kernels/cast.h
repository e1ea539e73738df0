// Casts between float and the types of 16 bits, bfloat16 and half precision (held as their bits).
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

// Shapes:  every array [n].
// Bits:    element-wise. To 16 bits: round to nearest, ties to even; NaN stays NaN (quiet), and
//          what exceeds the largest number becomes infinity. To float: exact.
// Threads: thread-safe.
struct CastKernels {
  void (*f32_to_bf16)(const float* x, uint16_t* y, int64_t n);
  void (*bf16_to_f32)(const uint16_t* x, float* y, int64_t n);
  void (*f32_to_f16)(const float* x, uint16_t* y, int64_t n);
  void (*f16_to_f32)(const uint16_t* x, float* y, int64_t n);
};

template <Isa kIsa>
CastKernels MakeCast();

inline const CastKernels& Cast() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeCast<isa()>(); });
  return table;
}

}  // namespace muster::kernels
