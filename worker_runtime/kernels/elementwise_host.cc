// Host twin of what goes element by element.
#include "worker_runtime/kernels/elementwise.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

template <typename T>
void Add(const T* a, const T* b, T* out, int64_t n) {
  ForEachPack<T>(
      n, [=](int64_t i, auto load, auto store) { store(load(a + i) + load(b + i), out + i); });
}

template <typename T>
void Scale(T factor, const T* x, T* out, int64_t n) {
  const auto f = Pack<T>::Broadcast(factor);
  ForEachPack<T>(n, [=](int64_t i, auto load, auto store) { store(f * load(x + i), out + i); });
}

}  // namespace

template <Isa isa, typename T>
ElementwiseKernels<T> MakeElementwise() {
  return {.add = &Add<T>, .scale = &Scale<T>};
}
template ElementwiseKernels<float> MakeElementwise<kIsa, float>();
template ElementwiseKernels<double> MakeElementwise<kIsa, double>();

}  // namespace muster::kernels
