// The bias of a linear layer.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"
#include "worker_runtime/kernels/row_shape.h"

namespace muster::kernels {

// Shapes:  y, residual, dy [rows, width]; bias, dbias [width].
// Bits:    fill: element-wise. gradient: the rows are added in blocks of 32, in row order, in T.
// Threads: thread-safe.
template <typename T>
struct BiasKernels {
  // y = bias in every row [+ residual]. The product of the layer is then accumulated onto it, which
  // saves a pass. `bias` and `residual` may be null; with both null y is zero.
  void (*fill)(RowShape shape, const T* bias, const T* residual, T* y);
  // dbias [+]= sum of dy over rows
  void (*gradient)(RowShape shape, const T* dy, T* dbias, bool accumulate);
};

template <Isa kIsa, typename T>
BiasKernels<T> MakeBias();

template <typename T>
const BiasKernels<T>& Bias() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeBias<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
