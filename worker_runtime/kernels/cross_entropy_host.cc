// Host twin of softmax with cross-entropy, and of its gradient.
#include "worker_runtime/kernels/cross_entropy.h"

#include "worker_runtime/kernels/softmax_row.h"

namespace muster::kernels {
namespace {

template <typename T>
void ScaleRow(T factor, T* x, int64_t n) {
  const auto f = Pack<T>::Broadcast(factor);
  ForEachPack<T>(n, [=](int64_t i, auto load, auto store) { store(f * load(x + i), x + i); });
}

// The loss of a row; `gradient` may be null.
template <typename T>
double Row(const T* logits, int32_t target, T* gradient, int64_t width) {
  const T max = RowMax(logits, width);
  const T target_logit = logits[target];
  T sum;
  if (gradient == nullptr) {
    sum = ExpAndSum<false, T>(logits, max, nullptr, width);
  } else {
    sum = ExpAndSum<true, T>(logits, max, gradient, width);
    ScaleRow(T{1} / sum, gradient, width);
    gradient[target] -= T{1};
  }
  return __builtin_log(static_cast<double>(sum)) +
         (static_cast<double>(max) - static_cast<double>(target_logit));
}

template <typename T>
CrossEntropySum Run(RowShape shape, const T* logits, const int32_t* targets, T* dlogits) {
  CrossEntropySum total;
  for (int64_t row = 0; row < shape.rows; ++row, logits += shape.width) {
    T* gradient = dlogits == nullptr ? nullptr : dlogits + row * shape.width;
    if (targets[row] == kIgnoredTarget) {
      for (int64_t i = 0; gradient != nullptr && i < shape.width; ++i) gradient[i] = T{0};
      continue;
    }
    total.loss += Row(logits, targets[row], gradient, shape.width);
    ++total.num_tokens;
  }
  return total;
}

}  // namespace

template <Isa isa, typename T>
CrossEntropyKernels<T> MakeCrossEntropy() {
  return {.run = &Run<T>};
}
template CrossEntropyKernels<float> MakeCrossEntropy<kIsa, float>();
template CrossEntropyKernels<double> MakeCrossEntropy<kIsa, double>();

}  // namespace muster::kernels
