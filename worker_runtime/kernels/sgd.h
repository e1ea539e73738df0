// The update of stochastic gradient descent.
//
//   g = gradient_scale * gradient + weight_decay * p
//   b = momentum * b + g              (without momentum: g)
//   p = p - lr * b                    (Nesterov: p - lr * (g + momentum * b))
//
// Source: torch.optim.SGD, without dampening, whose first step is b = g; Sutskever et al., "On the
// importance of initialization and momentum in deep learning", 2013, in PyTorch's form.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

struct SgdStep {
  double learning_rate = 1e-3;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  double gradient_scale = 1;  // 1 / tokens, and the factor of clipping
};

// Shapes:  every array [n]; `buffer` (b) is zero before the first step, and null without momentum.
// Bits:    element-wise in T; an element's bits depend on that element alone.
// Cost:    reads 3 and writes 2 numbers per element in one pass (2 and 1 without momentum).
// Threads: thread-safe.
template <typename T>
struct SgdKernels {
  void (*update)(const SgdStep& step, const T* gradient, T* value, T* buffer, int64_t n);
};

template <Isa kIsa, typename T>
SgdKernels<T> MakeSgd();

template <typename T>
const SgdKernels<T>& Sgd() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeSgd<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
