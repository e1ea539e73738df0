// Host twin of SwiGLU and its gradients.
#include "worker_runtime/kernels/swiglu.h"

#include "worker_runtime/kernels/vector_exp.h"

namespace muster::kernels {
namespace {

template <typename T>
[[gnu::always_inline]] inline Pack<T> Decay(const Pack<T>& gate) {
  return Exp(Pack<T>::Zero() - gate);
}

template <typename T>
[[gnu::flatten]] void Forward(RowShape shape, const T* gate_up, T* y) {
  const auto one = Pack<T>::Broadcast(1);
  for (int64_t row = 0; row < shape.rows; ++row, gate_up += 2 * shape.width, y += shape.width) {
    ForEachPack<T>(shape.width, [=](int64_t i, auto load, auto store) {
      const Pack<T> gate = load(gate_up + i);
      store(gate / (one + Decay(gate)) * load(gate_up + shape.width + i), y + i);
    });
  }
}

template <typename T>
[[gnu::flatten]] void Backward(RowShape shape, const T* gate_up, const T* dy, T* dgate_up) {
  const auto one = Pack<T>::Broadcast(1);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t begin = 2 * row * shape.width;
    ForEachPack<T>(shape.width, [=](int64_t i, auto load, auto store) {
      const Pack<T> gate = load(gate_up + begin + i);
      const Pack<T> up = load(gate_up + begin + shape.width + i);
      const Pack<T> d = load(dy + row * shape.width + i);
      const Pack<T> decay = Decay(gate);
      const Pack<T> s = one / (one + decay);
      // s * (1 - s) = s * s * exp(-gate); s * exp(-gate) first, because it is below 1.
      const Pack<T> bell = s * (s * decay);
      store(d * up * Fma(gate, bell, s), dgate_up + begin + i);
      store(d * (gate * s), dgate_up + begin + shape.width + i);
    });
  }
}

}  // namespace

template <Isa isa, typename T>
SwiGluKernels<T> MakeSwiGlu() {
  return {.forward = &Forward<T>, .backward = &Backward<T>};
}
template SwiGluKernels<float> MakeSwiGlu<kIsa, float>();
template SwiGluKernels<double> MakeSwiGlu<kIsa, double>();

}  // namespace muster::kernels
