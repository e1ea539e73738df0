// Host twin of AdamW and Adam: one pass over parameter, gradient and both moments.
#include "worker_runtime/kernels/adamw.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

// x^n by squaring, so that the factors do not depend on the C library.
double Power(double x, int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, x *= x) {
    if (n % 2 == 1) result *= x;
  }
  return result;
}

template <typename T, bool kDecaysGradient>
void UpdateAs(const AdamWStep& step, const T* gradient, AdamWState<T> state, int64_t n) {
  const auto broadcast = [](double factor) { return Pack<T>::Broadcast(static_cast<T>(factor)); };
  const double correction1 = 1 - Power(step.beta1, step.step);
  const double correction2 = 1 - Power(step.beta2, step.step);
  const auto scale = broadcast(step.gradient_scale);
  const auto beta1 = broadcast(step.beta1);
  const auto rest1 = broadcast(1 - step.beta1);
  const auto beta2 = broadcast(step.beta2);
  const auto rest2 = broadcast(1 - step.beta2);
  const auto decay = broadcast(step.weight_decay);
  const auto keep = broadcast(kDecaysGradient ? 1 : 1 - step.learning_rate * step.weight_decay);
  const auto rate = broadcast(-step.learning_rate / correction1);
  const auto root = broadcast(1 / __builtin_sqrt(correction2));
  const auto epsilon = broadcast(step.epsilon);
  ForEachPack<T>(n, [&](int64_t i, auto load, auto store) {
    const Pack<T> p = load(state.value + i);
    Pack<T> g = scale * load(gradient + i);
    if constexpr (kDecaysGradient) g = Fma(decay, p, g);
    const Pack<T> m = Fma(rest1, g, beta1 * load(state.first_moment + i));
    const Pack<T> v = Fma(rest2 * g, g, beta2 * load(state.second_moment + i));
    const Pack<T> direction = m / Fma(Sqrt(v), root, epsilon);
    store(m, state.first_moment + i);
    store(v, state.second_moment + i);
    store(Fma(rate, direction, keep * p), state.value + i);
  });
}

template <typename T>
void Update(const AdamWStep& step, const T* gradient, AdamWState<T> state, int64_t n) {
  const auto update = step.decays_gradient ? &UpdateAs<T, true> : &UpdateAs<T, false>;
  update(step, gradient, state, n);
}

}  // namespace

template <Isa isa, typename T>
AdamWKernels<T> MakeAdamW() {
  return {.update = &Update<T>};
}
template AdamWKernels<float> MakeAdamW<kIsa, float>();
template AdamWKernels<double> MakeAdamW<kIsa, double>();

}  // namespace muster::kernels
