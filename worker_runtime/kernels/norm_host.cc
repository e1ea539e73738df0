// Host twin of norms and their gradients.
#include "worker_runtime/kernels/norm.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

constexpr int64_t kRowBlock = 32;

int64_t BeginOf(NormShape shape, int64_t row) {
  return row / shape.per_line * shape.line + shape.offset + row % shape.per_line * shape.width;
}

template <typename T>
T Mean(const T* x, int64_t width) {
  auto sum = Pack<T>::Zero();
  ForEachPack<T>(width, [&](int64_t i, auto load, auto) { sum = sum + load(x + i); });
  return Sum(sum) / static_cast<T>(width);
}

// The mean of (x - mean)^2.
template <typename T>
T MeanSquare(const T* x, T mean, int64_t width) {
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

template <NormKind kKind, typename T>
T MeanOf(typename NormKernels<T>::Saved saved, int64_t row) {
  return kKind == NormKind::kLayer ? saved.mean[row] : T{0};
}

template <NormKind kKind, typename T>
void Forward(NormShape shape, const T* x, typename NormKernels<T>::Affine affine, T* y,
             typename NormKernels<T>::Saved saved) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t begin = BeginOf(shape, row);
    T mean = 0;
    if constexpr (kKind == NormKind::kLayer) saved.mean[row] = mean = Mean(x + begin, shape.width);
    const T variance = MeanSquare(x + begin, mean, shape.width);
    const T rstd = T{1} / ScalarSqrt(variance + static_cast<T>(affine.epsilon));
    saved.rstd[row] = rstd;
    const auto center = Pack<T>::Broadcast(mean);
    const auto scale = Pack<T>::Broadcast(rstd);
    ForEachPack<T>(shape.width, [&](int64_t i, auto load, auto store) {
      const Pack<T> xhat = (load(x + begin + i) - center) * scale;
      if constexpr (kKind == NormKind::kLayer) {
        store(Fma(xhat, load(affine.gamma + i), load(affine.beta + i)), y + begin + i);
      } else {
        store(xhat * load(affine.gamma + i), y + begin + i);
      }
    });
  }
}

template <NormKind kKind, typename T>
void InputGradient(NormShape shape, const T* x, const T* dy, const T* gamma,
                   typename NormKernels<T>::Saved saved, const T* addend, T* dx) {
  const T width = static_cast<T>(shape.width);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t base = BeginOf(shape, row);
    const auto center = Pack<T>::Broadcast(MeanOf<kKind, T>(saved, row));
    const auto scale = Pack<T>::Broadcast(saved.rstd[row]);
    auto sum_g = Pack<T>::Zero();
    auto sum_gx = Pack<T>::Zero();
    ForEachPack<T>(shape.width, [&](int64_t i, auto load, auto) {
      const Pack<T> g = load(dy + base + i) * load(gamma + i);
      if constexpr (kKind == NormKind::kLayer) sum_g = sum_g + g;
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

template <NormKind kKind, typename T>
void WeightGradient(NormShape shape, const T* x, const T* dy, typename NormKernels<T>::Saved saved,
                    typename NormKernels<T>::Gradients gradients) {
  for (int64_t first = 0; first < shape.rows; first += kRowBlock) {
    const int64_t rows = first + kRowBlock < shape.rows ? kRowBlock : shape.rows - first;
    const bool overwrite = first == 0 && !gradients.accumulate;
    int64_t begins[kRowBlock];
    for (int64_t i = 0; i < rows; ++i) begins[i] = BeginOf(shape, first + i);
    ForEachPack<T>(shape.width, [&](int64_t i, auto load, auto store) {
      auto dgamma = Pack<T>::Zero();
      auto dbeta = Pack<T>::Zero();
      for (int64_t row = 0; row < rows; ++row) {
        const Pack<T> d = load(dy + begins[row] + i);
        const auto center = Pack<T>::Broadcast(MeanOf<kKind, T>(saved, first + row));
        const auto scale = Pack<T>::Broadcast(saved.rstd[first + row]);
        dgamma = Fma(d, (load(x + begins[row] + i) - center) * scale, dgamma);
        if constexpr (kKind == NormKind::kLayer) dbeta = dbeta + d;
      }
      if (!overwrite) dgamma = load(gradients.dgamma + i) + dgamma;
      store(dgamma, gradients.dgamma + i);
      if constexpr (kKind == NormKind::kLayer) {
        if (!overwrite) dbeta = load(gradients.dbeta + i) + dbeta;
        store(dbeta, gradients.dbeta + i);
      }
    });
  }
}

// The function of the shape's kind.
template <auto kLayer, auto kRms>
struct ByKind;
template <typename... Arguments, void (*kLayer)(NormShape, Arguments...),
          void (*kRms)(NormShape, Arguments...)>
struct ByKind<kLayer, kRms> {
  static void Run(NormShape shape, Arguments... arguments) {
    (shape.kind == NormKind::kLayer ? kLayer : kRms)(shape, arguments...);
  }
};

}  // namespace

template <Isa isa, typename T>
NormKernels<T> MakeNorm() {
  using enum NormKind;
  return {.forward = &ByKind<&Forward<kLayer, T>, &Forward<kRms, T>>::Run,
          .input_gradient = &ByKind<&InputGradient<kLayer, T>, &InputGradient<kRms, T>>::Run,
          .weight_gradient = &ByKind<&WeightGradient<kLayer, T>, &WeightGradient<kRms, T>>::Run};
}
template NormKernels<float> MakeNorm<kIsa, float>();
template NormKernels<double> MakeNorm<kIsa, double>();

}  // namespace muster::kernels
