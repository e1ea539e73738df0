// The updates of AdamW and Adam.
//
//   g = gradient_scale * gradient [+ weight_decay * p]
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g^2
//   d = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   p = p [* (1 - lr * weight_decay)] - lr * d
//
// Adam has the first of the brackets, AdamW the second.
//
// Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2, with
// the decay scaled by lr alone, as PyTorch's AdamW does; Kingma and Ba, "Adam", 2015, algorithm 1.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

struct AdamWStep {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  bool decays_gradient = false;  // Adam
  double gradient_scale = 1;     // 1 / tokens, and the factor of clipping
  int64_t step = 1;              // t: 1 for the first update
};

template <typename T>
struct AdamWState {
  T* value;
  T* first_moment;
  T* second_moment;
};

// Shapes:  every array [n]; both moments are zero before the first step.
// Bits:    element-wise in T; an element's bits depend on that element alone. The factors of a step
//          are computed in double and rounded to T once.
// Cost:    reads 4 and writes 3 numbers per element in one pass; bound by memory.
// Threads: thread-safe.
template <typename T>
struct AdamWKernels {
  void (*update)(const AdamWStep& step, const T* gradient, AdamWState<T> state, int64_t n);
};

template <Isa kIsa, typename T>
AdamWKernels<T> MakeAdamW();

template <typename T>
const AdamWKernels<T>& AdamW() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeAdamW<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
