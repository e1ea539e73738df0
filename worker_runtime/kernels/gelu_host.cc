// Host twin of GELU (tanh form) and its gradient.
#include "worker_runtime/kernels/gelu.h"

#include "worker_runtime/kernels/vector_exp.h"

namespace muster::kernels {
namespace {

constexpr double kMinusTwoSqrt2OverPi = -1.5957691216057308;
constexpr double kCubic = 0.044715;

// exp(-2u)
template <typename T>
[[gnu::always_inline]] inline Pack<T> Decay(const Pack<T>& x, const Pack<T>& x2) {
  const auto slope = Fma(x2, Pack<T>::Broadcast(kMinusTwoSqrt2OverPi * kCubic),
                         Pack<T>::Broadcast(kMinusTwoSqrt2OverPi));
  return Exp(x * slope);
}

template <typename T>
[[gnu::flatten]] void Forward(const T* x, T* y, int64_t n) {
  const auto one = Pack<T>::Broadcast(1);
  ForEachPack<T>(n, [=](int64_t i, auto load, auto store) {
    const Pack<T> xi = load(x + i);
    store(xi / (one + Decay(xi, xi * xi)), y + i);
  });
}

template <typename T>
[[gnu::flatten]] void Backward(const T* x, const T* dy, T* dx, int64_t n) {
  const auto one = Pack<T>::Broadcast(1);
  ForEachPack<T>(n, [=](int64_t i, auto load, auto store) {
    const Pack<T> xi = load(x + i);
    const Pack<T> x2 = xi * xi;
    const Pack<T> decay = Decay(xi, x2);
    const Pack<T> s = one / (one + decay);
    const auto two_du = Fma(x2, Pack<T>::Broadcast(-3 * kMinusTwoSqrt2OverPi * kCubic),
                            Pack<T>::Broadcast(-kMinusTwoSqrt2OverPi));
    // s * (1 - s) = s * s * exp(-2u); s * exp(-2u) first, because it is below 1.
    const Pack<T> bell = s * (s * decay);
    store(load(dy + i) * Fma(xi * bell, two_du, s), dx + i);
  });
}

}  // namespace

template <Isa isa, typename T>
GeluKernels<T> MakeGelu() {
  return {.forward = &Forward<T>, .backward = &Backward<T>};
}
template GeluKernels<float> MakeGelu<kIsa, float>();
template GeluKernels<double> MakeGelu<kIsa, double>();

}  // namespace muster::kernels
