// GELU in GPT-2's tanh form.
//
//   u(x) = sqrt(2/pi) * (x + 0.044715 x^3)
//   gelu(x) = x/2 * (1 + tanh(u)) = x * s   with   s = 1 / (1 + exp(-2u))
//
// The logistic form needs one exp and loses no digits where x is large and negative.
// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, section 2
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

// Shapes:  every array [n]. Outputs may be inputs.
// Bits:    element-wise; an element's bits depend on that element alone.
// Error:   below 4 units in the last place of max(|gelu|, 2^-24 |x|) in float.
// Cost:    one exp and one division per element.
// Threads: thread-safe.
template <typename T>
struct GeluKernels {
  // y = gelu(x)
  void (*forward)(const T* x, T* y, int64_t n);
  // dx = dy * gelu'(x),  gelu' = s + x * s * (1 - s) * 2u'
  void (*backward)(const T* x, const T* dy, T* dx, int64_t n);
};

template <Isa kIsa, typename T>
GeluKernels<T> MakeGelu();

template <typename T>
const GeluKernels<T>& Gelu() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeGelu<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
