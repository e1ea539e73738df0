// The loss of a model's last layer on a CUDA device, some rows at a time: its logits, the largest
// array of a step, never exist as a whole.
//
//   logits = x weight^T,   losses by row,   dx = dlogits weight,   dweight [+]= dlogits^T x
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker_runtime/kernels/cuda_kernels.h"

namespace muster::kernels::cuda {

struct ChunkedLossShape {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t vocabulary = 0;
  int64_t chunk_rows = 0;       // more: fewer and larger products
  int64_t padded = vocabulary;  // rows of the weight and its gradient, of which those behind the
                                // vocabulary are zeros
};

// c = op(a) op(b) [+ c], row-major and dense: op(a) [m, k], op(b) [k, n].
template <typename T, typename C = T>
struct DenseProduct {
  int64_t m, n, k;
  const T* a;
  const T* b;
  C* c;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

// x [rows, width], weight [padded, width], targets [rows] as in cross_entropy.h;
// gradient_scale [1], of the device, or null: there are no gradients.
template <typename T>
struct ChunkedLossInput {
  const T* x;
  const T* weight;
  const int32_t* targets;
  const float* gradient_scale;
};
// losses [rows]; dx [rows, width] is overwritten, dweight [padded, width] of G is added to, once
// per chunk, by the first only if it `accumulates`; either may be null; logits [chunk_rows, padded]
// is scratch.
template <typename T, typename G = T>
struct ChunkedLossOutput {
  double* losses;
  T* dx;
  G* dweight;
  T* logits;
  bool accumulates = true;
};

// `multiply(product)` puts a DenseProduct of T, with a result of T or G, on the same stream and
// returns its LaunchError.
template <typename T, typename G = T, typename Multiply>
LaunchError ChunkedLoss(StreamHandle stream, ChunkedLossShape shape, ChunkedLossInput<T> in,
                        ChunkedLossOutput<T, G> out, const Multiply& multiply) {
  const int64_t width = shape.width;
  const int64_t padded = shape.padded;
  LaunchError error = nullptr;
  const auto product = [&](const auto& p) {
    if (error == nullptr) error = multiply(p);
  };
  for (int64_t first = 0; first < shape.rows; first += shape.chunk_rows) {
    const int64_t rows = std::min(shape.chunk_rows, shape.rows - first);
    const T* x = in.x + first * width;
    product(DenseProduct<T>{.m = rows,
                            .n = padded,
                            .k = width,
                            .a = x,
                            .b = in.weight,
                            .c = out.logits,
                            .transpose_b = true});
    if (error == nullptr) {
      error =
          CrossEntropyRows(stream, {.rows = rows, .width = shape.vocabulary, .stride = padded},
                           out.logits, in.targets + first, in.gradient_scale, out.losses + first);
    }
    if (in.gradient_scale == nullptr) continue;
    if (out.dx != nullptr) {
      product(DenseProduct<T>{.m = rows,
                              .n = width,
                              .k = padded,
                              .a = out.logits,
                              .b = in.weight,
                              .c = out.dx + first * width});
    }
    if (out.dweight == nullptr) continue;
    product(DenseProduct<T, G>{.m = padded,
                               .n = width,
                               .k = rows,
                               .a = out.logits,
                               .b = x,
                               .c = out.dweight,
                               .transpose_a = true,
                               .accumulate = out.accumulates || first > 0});
  }
  return error;
}

}  // namespace muster::kernels::cuda
