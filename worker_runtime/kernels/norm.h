// Normalisation over the last dimension, of whole rows or of the heads within them.
//
// Layer norm:
//   mean = sum(x) / w,  var = sum((x - mean)^2) / w,  rstd = 1 / sqrt(var + epsilon)
//   y = (x - mean) * rstd * gamma + beta
// RMS norm has neither a mean nor beta:
//   rstd = 1 / sqrt(sum(x^2) / w + epsilon),  y = x * rstd * gamma
//
// Source: Ba et al., "Layer Normalization", 2016, section 3; Zhang and Sennrich, "Root Mean Square
// Layer Normalization", 2019, section 4
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

enum class NormKind { kLayer, kRms };

// What is normed: rows of `width`, of which each line of `line` elements has `per_line`, side by
// side from its element `offset` on. Row r of x, y, dy, dx and the addend begins at
//   (r / per_line) * line + offset + (r % per_line) * width,
// so that the queries' heads, or the keys', of lines of queries, keys and values are normed by one
// call. What lies between the rows is neither read nor written.
struct NormShape {
  NormKind kind = NormKind::kLayer;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t per_line = 1;
  int64_t line = width;
  int64_t offset = 0;
};

// Shapes:  x, y, dy, dx, addend as NormShape has them; gamma, beta, dgamma, dbeta [width]; mean,
//          rstd [rows]. An RMS norm's mean, beta and dbeta are not looked at.
// Bits:    sums over a row run in the lanes of a Pack, in T; forward and input_gradient of a row
//          depend on that row alone. dgamma and dbeta add the rows in blocks of 32, in row order.
// Threads: thread-safe.
template <typename T>
struct NormKernels {
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

  // `y` may be x.
  void (*forward)(NormShape shape, const T* x, Affine affine, T* y, Saved saved);
  // dx = [addend +] rstd * (g - mean(g) - xhat * mean(g * xhat)), where g = dy * gamma and xhat is
  // what gamma multiplies; an RMS norm does without mean(g). `addend` may be null, and may be dx;
  // `dx` may be dy.
  void (*input_gradient)(NormShape shape, const T* x, const T* dy, const T* gamma, Saved saved,
                         const T* addend, T* dx);
  // dgamma = sum of dy * xhat over rows, dbeta = sum of dy over rows.
  void (*weight_gradient)(NormShape shape, const T* x, const T* dy, Saved saved,
                          Gradients gradients);
};

template <Isa kIsa, typename T>
NormKernels<T> MakeNorm();

template <typename T>
const NormKernels<T>& Norm() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeNorm<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
