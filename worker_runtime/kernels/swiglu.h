// SwiGLU, the gated activation between the products of a feed-forward network.
//
//   silu(x) = x * s   with   s = 1 / (1 + exp(-x))
//   y = silu(gate) * up
//
// Source: Shazeer, "GLU Variants Improve Transformer", 2020, section 2
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"
#include "worker_runtime/kernels/row_shape.h"

namespace muster::kernels {

// Shapes:  y, dy [rows, width]; gate_up, dgate_up [rows, 2 width], in each row the gate, then up.
// Bits:    element-wise; an element's bits depend on its gate, its up and its dy alone.
// Cost:    one exp and one division per element.
// Threads: thread-safe.
template <typename T>
struct SwiGluKernels {
  void (*forward)(RowShape shape, const T* gate_up, T* y);
  // dgate = dy * up * silu'(gate),  silu' = s + gate * s * (1 - s);  dup = dy * silu(gate).
  // `dgate_up` may be gate_up.
  void (*backward)(RowShape shape, const T* gate_up, const T* dy, T* dgate_up);
};

template <Isa kIsa, typename T>
SwiGluKernels<T> MakeSwiGlu();

template <typename T>
const SwiGluKernels<T>& SwiGlu() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeSwiGlu<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
