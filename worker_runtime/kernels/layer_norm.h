// Layer normalisation over the last dimension.
//
//   mean = sum(x) / w,  var = sum((x - mean)^2) / w,  rstd = 1 / sqrt(var + epsilon)
//   y = (x - mean) * rstd * gamma + beta
//
// Source: Ba et al., "Layer Normalization", 2016, section 3
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"
#include "worker_runtime/kernels/row_shape.h"

namespace muster::kernels {

// Shapes:  x, y, dy, dx, addend [rows, width]; gamma, beta, dgamma, dbeta [width]; mean, rstd
//          [rows].
// Bits:    sums over a row run in the lanes of a Pack, in T; forward and input_gradient of a row
//          depend on that row alone. dgamma and dbeta add the rows in blocks of 32, in row order.
// Threads: thread-safe.
template <typename T>
struct LayerNormKernels {
  struct Affine {
    const T* gamma;
    const T* beta;
    double epsilon;
  };
  // What backward needs of forward.
  struct Saved {
    T* mean;
    T* rstd;
  };
  struct Gradients {
    T* dgamma;
    T* dbeta;
    bool accumulate;  // add to them instead of overwriting
  };

  void (*forward)(RowShape shape, const T* x, Affine affine, T* y, Saved saved);
  // dx = [addend +] rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * gamma.
  // `addend` may be null, and may be dx.
  void (*input_gradient)(RowShape shape, const T* x, const T* dy, const T* gamma, Saved saved,
                         const T* addend, T* dx);
  // dgamma = sum of dy * xhat over rows, dbeta = sum of dy over rows.
  void (*weight_gradient)(RowShape shape, const T* x, const T* dy, Saved saved,
                          Gradients gradients);
};

template <Isa kIsa, typename T>
LayerNormKernels<T> MakeLayerNorm();

template <typename T>
const LayerNormKernels<T>& LayerNorm() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeLayerNorm<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
