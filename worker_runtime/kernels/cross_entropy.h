// Softmax and cross-entropy in one pass over the logits.
//
//   loss[row] = log(sum_j exp(z[row, j])) - z[row, target],   dz = softmax(z) - onehot(target)
//
// Rows with the target kIgnoredTarget add nothing and get a gradient of zero.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"
#include "worker_runtime/kernels/row_shape.h"

namespace muster::kernels {

inline constexpr int32_t kIgnoredTarget = -1;

struct CrossEntropySum {
  double loss = 0;         // summed, not averaged: ranks and micro-batches weigh by tokens
  int64_t num_tokens = 0;  // rows that counted
};

// Shapes:  logits, dlogits [rows, width]; targets [rows], each -1 or in [0, width), which the
//          caller has checked. dlogits may be logits; null: no gradient is computed.
// Bits:    row-wise in T, each loss to double, then the losses are added in row order in double.
// Threads: thread-safe.
template <typename T>
struct CrossEntropyKernels {
  CrossEntropySum (*run)(RowShape shape, const T* logits, const int32_t* targets, T* dlogits);
};

template <Isa kIsa, typename T>
CrossEntropyKernels<T> MakeCrossEntropy();

template <typename T>
const CrossEntropyKernels<T>& CrossEntropy() {
  static const auto table =
      ForIsa(BestIsa(), [](auto isa) { return MakeCrossEntropy<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
