// Host twin of adding a bias to rows, and of summing its gradient over them.
#include "worker_runtime/kernels/bias.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

constexpr int64_t kRowBlock = 32;

template <typename T>
void Fill(RowShape shape, const T* bias, const T* residual, T* y) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t base = row * shape.width;
    ForEachPack<T>(shape.width, [&](int64_t i, auto load, auto store) {
      const auto b = bias == nullptr ? Pack<T>::Zero() : load(bias + i);
      store(residual == nullptr ? b : load(residual + base + i) + b, y + base + i);
    });
  }
}

template <typename T>
void Gradient(RowShape shape, const T* dy, T* dbias, bool accumulate) {
  for (int64_t first = 0; first < shape.rows; first += kRowBlock) {
    const int64_t last = first + kRowBlock < shape.rows ? first + kRowBlock : shape.rows;
    const bool overwrite = first == 0 && !accumulate;
    ForEachPack<T>(shape.width, [&](int64_t i, auto load, auto store) {
      auto sum = Pack<T>::Zero();
      for (int64_t row = first; row < last; ++row) sum = sum + load(dy + row * shape.width + i);
      store(overwrite ? sum : load(dbias + i) + sum, dbias + i);
    });
  }
}

}  // namespace

template <Isa isa, typename T>
BiasKernels<T> MakeBias() {
  return {.fill = &Fill<T>, .gradient = &Gradient<T>};
}
template BiasKernels<float> MakeBias<kIsa, float>();
template BiasKernels<double> MakeBias<kIsa, double>();

}  // namespace muster::kernels
