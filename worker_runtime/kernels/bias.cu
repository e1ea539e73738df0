// The bias of a linear layer: rows filled with it, and its gradient.
#include "worker_runtime/kernels/column_sums.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {
namespace {

// A block has a row.
template <typename T, int kCount>
__global__ void FillKernel(RowShape shape, const T* bias, const T* residual, T* y) {
  const int64_t base = static_cast<int64_t>(blockIdx.x) * shape.width;
  for (int64_t i = threadIdx.x * kCount; i < shape.width; i += kThreads * kCount) {
    float sum[kCount] = {}, more[kCount] = {};
    if (bias != nullptr) Load(bias + i, sum);
    if (residual != nullptr) Load(residual + base + i, more);
    for (int k = 0; k < kCount; ++k) sum[k] += more[k];
    Store(sum, y + base + i);
  }
}

template <typename T>
__global__ void GradientStripKernel(RowShape shape, const T* dy, float* partials) {
  SumStrip(shape, partials,
           [&](int64_t row, int64_t column) { return ToFloat(dy[row * shape.width + column]); });
}

}  // namespace

template <typename T>
LaunchError BiasFill(StreamHandle stream, RowShape shape, const T* bias, const T* residual, T* y) {
  return ForWidth<T>(shape.width, [&](auto count) {
    return simt::Launch(&FillKernel<T, count()>, {.blocks = shape.rows, .threads = kThreads},
                        stream, shape, bias, residual, y);
  });
}

template <typename T, typename G>
LaunchError BiasGradient(StreamHandle stream, RowShape shape, const T* dy, G* dbias,
                         bool accumulate, float* scratch) {
  const LaunchError error =
      simt::Launch(&GradientStripKernel<T>, StripLaunch(shape), stream, shape, dy, scratch);
  if (error != nullptr) return error;
  return AddStrips<G, 1>(stream, {.rows = StripsOf(shape.rows, kStripRows), .width = shape.width},
                         scratch, {.to = {dbias}, .accumulate = accumulate});
}

template LaunchError BiasFill(StreamHandle, RowShape, const float*, const float*, float*);
template LaunchError BiasFill(StreamHandle, RowShape, const uint16_t*, const uint16_t*, uint16_t*);
template LaunchError BiasFill(StreamHandle, RowShape, const Half*, const Half*, Half*);
template LaunchError BiasGradient(StreamHandle, RowShape, const float*, float*, bool, float*);
template LaunchError BiasGradient(StreamHandle, RowShape, const uint16_t*, uint16_t*, bool, float*);
template LaunchError BiasGradient(StreamHandle, RowShape, const Half*, Half*, bool, float*);
template LaunchError BiasGradient(StreamHandle, RowShape, const uint16_t*, float*, bool, float*);
template LaunchError BiasGradient(StreamHandle, RowShape, const Half*, float*, bool, float*);

}  // namespace muster::kernels::cuda
