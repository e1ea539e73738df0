// Host twin of layer norm and its gradients.
#include "worker_runtime/kernels/layer_norm.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

constexpr int64_t kRowBlock = 32;

template <typename T>
T Mean(const T* x, int64_t width) {
  auto sum = Pack<T>::Zero();
  ForEachPack<T>(width, [&](int64_t i, auto load, auto) { sum = sum + load(x + i); });
  return Sum(sum) / static_cast<T>(width);
}

template <typename T>
T Variance(const T* x, T mean, int64_t width) {
  const auto center = Pack<T>::Broadcast(mean);
  auto sum = Pack<T>::Zero();
  int64_t i = 0;
  for (; i + Pack<T>::kLanes <= width; i += Pack<T>::kLanes) {
    const Pack<T> d = Pack<T>::Load(x + i) - center;
    sum = Fma(d, d, sum);
  }
  if (i < width) {
    const Pack<T> d = Pack<T>::LoadTail(x + i, width - i, mean) - center;
    sum = Fma(d, d, sum);
  }
  return Sum(sum) / static_cast<T>(width);
}

template <typename T>
void Forward(RowShape shape, const T* x, typename LayerNormKernels<T>::Affine affine, T* y,
             typename LayerNormKernels<T>::Saved saved) {
  for (int64_t row = 0; row < shape.rows; ++row, x += shape.width, y += shape.width) {
    const T mean = Mean(x, shape.width);
    const T variance = Variance(x, mean, shape.width);
    const T rstd = T{1} / ScalarSqrt(variance + static_cast<T>(affine.epsilon));
    saved.mean[row] = mean;
    saved.rstd[row] = rstd;
    const auto center = Pack<T>::Broadcast(mean);
    const auto scale = Pack<T>::Broadcast(rstd);
    ForEachPack<T>(shape.width, [&](int64_t i, auto load, auto store) {
      const Pack<T> xhat = (load(x + i) - center) * scale;
      store(Fma(xhat, load(affine.gamma + i), load(affine.beta + i)), y + i);
    });
  }
}

template <typename T>
void InputGradient(RowShape shape, const T* x, const T* dy, const T* gamma,
                   typename LayerNormKernels<T>::Saved saved, const T* addend, T* dx) {
  const T width = static_cast<T>(shape.width);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t base = row * shape.width;
    const auto center = Pack<T>::Broadcast(saved.mean[row]);
    const auto scale = Pack<T>::Broadcast(saved.rstd[row]);
    auto sum_g = Pack<T>::Zero();
    auto sum_gx = Pack<T>::Zero();
    ForEachPack<T>(shape.width, [&](int64_t i, auto load, auto) {
      const Pack<T> g = load(dy + base + i) * load(gamma + i);
      sum_g = sum_g + g;
      sum_gx = Fma(g, (load(x + base + i) - center) * scale, sum_gx);
    });
    const auto mean_g = Pack<T>::Broadcast(Sum(sum_g) / width);
    const auto mean_gx = Pack<T>::Broadcast(Sum(sum_gx) / width);
    ForEachPack<T>(shape.width, [&](int64_t i, auto load, auto store) {
      const Pack<T> g = load(dy + base + i) * load(gamma + i);
      const Pack<T> xhat = (load(x + base + i) - center) * scale;
      const Pack<T> centered = g - mean_g - xhat * mean_gx;
      const auto before = addend == nullptr ? Pack<T>::Zero() : load(addend + base + i);
      store(Fma(centered, scale, before), dx + base + i);
    });
  }
}

template <typename T>
void WeightGradient(RowShape shape, const T* x, const T* dy,
                    typename LayerNormKernels<T>::Saved saved,
                    typename LayerNormKernels<T>::Gradients gradients) {
  for (int64_t first = 0; first < shape.rows; first += kRowBlock) {
    const int64_t last = first + kRowBlock < shape.rows ? first + kRowBlock : shape.rows;
    const bool overwrite = first == 0 && !gradients.accumulate;
    ForEachPack<T>(shape.width, [&](int64_t i, auto load, auto store) {
      auto dgamma = Pack<T>::Zero();
      auto dbeta = Pack<T>::Zero();
      for (int64_t row = first; row < last; ++row) {
        const Pack<T> d = load(dy + row * shape.width + i);
        const auto center = Pack<T>::Broadcast(saved.mean[row]);
        const auto scale = Pack<T>::Broadcast(saved.rstd[row]);
        dgamma = Fma(d, (load(x + row * shape.width + i) - center) * scale, dgamma);
        dbeta = dbeta + d;
      }
      if (!overwrite) {
        dgamma = load(gradients.dgamma + i) + dgamma;
        dbeta = load(gradients.dbeta + i) + dbeta;
      }
      store(dgamma, gradients.dgamma + i);
      store(dbeta, gradients.dbeta + i);
    });
  }
}

}  // namespace

template <Isa isa, typename T>
LayerNormKernels<T> MakeLayerNorm() {
  return {.forward = &Forward<T>,
          .input_gradient = &InputGradient<T>,
          .weight_gradient = &WeightGradient<T>};
}
template LayerNormKernels<float> MakeLayerNorm<kIsa, float>();
template LayerNormKernels<double> MakeLayerNorm<kIsa, double>();

}  // namespace muster::kernels
