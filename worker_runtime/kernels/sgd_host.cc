// Host twin of SGD: one pass over parameter, gradient and momentum.
#include "worker_runtime/kernels/sgd.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

template <typename T>
void Update(const SgdStep& step, const T* gradient, T* value, T* buffer, int64_t n) {
  const auto broadcast = [](double factor) { return Pack<T>::Broadcast(static_cast<T>(factor)); };
  const auto scale = broadcast(step.gradient_scale);
  const auto decay = broadcast(step.weight_decay);
  const auto momentum = broadcast(step.momentum);
  const auto rate = broadcast(-step.learning_rate);
  ForEachPack<T>(n, [&](int64_t i, auto load, auto store) {
    const Pack<T> p = load(value + i);
    const Pack<T> g = Fma(decay, p, scale * load(gradient + i));
    Pack<T> direction = g;
    if (buffer != nullptr) {
      const Pack<T> b = Fma(momentum, load(buffer + i), g);
      store(b, buffer + i);
      direction = step.nesterov ? Fma(momentum, b, g) : b;
    }
    store(Fma(rate, direction, p), value + i);
  });
}

}  // namespace

template <Isa isa, typename T>
SgdKernels<T> MakeSgd() {
  return {.update = &Update<T>};
}
template SgdKernels<float> MakeSgd<kIsa, float>();
template SgdKernels<double> MakeSgd<kIsa, double>();

}  // namespace muster::kernels
