// Host twin of sums of squares by block.
#include "worker_runtime/kernels/sum_of_squares.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

template <typename T>
double Widened(const Pack<T>& lanes) {
  alignas(kPackBytes) T narrow[Pack<T>::kLanes];
  lanes.Store(narrow);
  double wide[Pack<T>::kLanes];
  for (int64_t i = 0; i < Pack<T>::kLanes; ++i) wide[i] = narrow[i];
  for (int64_t width = Pack<T>::kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) wide[i] += wide[i + width];
  }
  return wide[0];
}

template <typename T>
void Blocks(const T* x, int64_t n, double* partials) {
  for (int64_t first = 0; first < n; first += kNormBlock) {
    const int64_t count = n - first < kNormBlock ? n - first : kNormBlock;
    auto sum = Pack<T>::Zero();
    ForEachPack<T>(count, [&](int64_t i, auto load, auto) {
      const Pack<T> xi = load(x + first + i);
      sum = Fma(xi, xi, sum);
    });
    *partials++ = Widened(sum);
  }
}

}  // namespace

template <Isa isa, typename T>
SumOfSquaresKernels<T> MakeSumOfSquares() {
  return {.blocks = &Blocks<T>};
}
template SumOfSquaresKernels<float> MakeSumOfSquares<kIsa, float>();
template SumOfSquaresKernels<double> MakeSumOfSquares<kIsa, double>();

}  // namespace muster::kernels
