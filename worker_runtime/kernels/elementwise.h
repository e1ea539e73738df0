// Sums and scalings of flat arrays: residual connections, gradients that meet, loss scaling.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

// Shapes:  every array [n]. Outputs may be inputs.
// Bits:    element-wise; an element's bits depend on that element alone.
// Threads: thread-safe.
template <typename T>
struct ElementwiseKernels {
  // out = a + b
  void (*add)(const T* a, const T* b, T* out, int64_t n);
  // out = factor * x
  void (*scale)(T factor, const T* x, T* out, int64_t n);
};

template <Isa kIsa, typename T>
ElementwiseKernels<T> MakeElementwise();

template <typename T>
const ElementwiseKernels<T>& Elementwise() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeElementwise<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
