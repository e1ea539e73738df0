// Layer norm: a warp per row, which reads it again for each of its passes, from the cache.
#include "worker_runtime/kernels/column_sums.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {
namespace {

// Calls `use(first column, numbers)` for the columns of this lane.
template <int kCount, typename T, typename Use>
__device__ void ForRow(const T* row, int64_t width, const Use& use) {
  for (int64_t i = simt::Lane() * kCount; i < width; i += simt::kWarpSize * kCount) {
    float x[kCount];
    Load(row + i, x);
    use(i, x);
  }
}

__device__ inline int64_t RowOfWarp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + simt::Warp();
}

template <typename T, int kCount>
__global__ void ForwardKernel(RowShape shape, const T* x, LayerNormAffine<T> affine, T* y,
                              LayerNormSaved saved) {
  const int64_t row = RowOfWarp();
  if (row >= shape.rows) return;
  const int64_t base = row * shape.width;
  float sum = 0;
  ForRow<kCount>(x + base, shape.width, [&](int64_t, const float(&numbers)[kCount]) {
    for (int k = 0; k < kCount; ++k) sum += numbers[k];
  });
  const float mean = WarpSum(sum) / static_cast<float>(shape.width);
  float squares = 0;
  ForRow<kCount>(x + base, shape.width, [&](int64_t, const float(&numbers)[kCount]) {
    for (int k = 0; k < kCount; ++k) {
      const float d = numbers[k] - mean;
      squares = fmaf(d, d, squares);
    }
  });
  const float variance = WarpSum(squares) / static_cast<float>(shape.width);
  const float rstd = 1.0f / sqrtf(variance + static_cast<float>(affine.epsilon));
  if (simt::Lane() == 0) {
    saved.mean[row] = mean;
    saved.rstd[row] = rstd;
  }
  ForRow<kCount>(x + base, shape.width, [&](int64_t i, float(&numbers)[kCount]) {
    float gamma[kCount], beta[kCount];
    Load(affine.gamma + i, gamma);
    Load(affine.beta + i, beta);
    for (int k = 0; k < kCount; ++k) {
      numbers[k] = fmaf((numbers[k] - mean) * rstd, gamma[k], beta[k]);
    }
    Store(numbers, y + base + i);
  });
}

template <typename T, int kCount>
__global__ void InputGradientKernel(RowShape shape, LayerNormUpstream<T> in, const T* gamma,
                                    LayerNormSaved saved, T* dx) {
  const int64_t row = RowOfWarp();
  if (row >= shape.rows) return;
  const int64_t base = row * shape.width;
  const float mean = saved.mean[row];
  const float rstd = saved.rstd[row];
  float sum_g = 0;
  float sum_gx = 0;
  ForRow<kCount>(in.x + base, shape.width, [&](int64_t i, const float(&x)[kCount]) {
    float dy[kCount], weight[kCount];
    Load(in.dy + base + i, dy);
    Load(gamma + i, weight);
    for (int k = 0; k < kCount; ++k) {
      const float g = dy[k] * weight[k];
      sum_g += g;
      sum_gx = fmaf(g, (x[k] - mean) * rstd, sum_gx);
    }
  });
  const float mean_g = WarpSum(sum_g) / static_cast<float>(shape.width);
  const float mean_gx = WarpSum(sum_gx) / static_cast<float>(shape.width);
  ForRow<kCount>(in.x + base, shape.width, [&](int64_t i, const float(&x)[kCount]) {
    float dy[kCount], weight[kCount], out[kCount] = {};
    Load(in.dy + base + i, dy);
    Load(gamma + i, weight);
    if (in.addend != nullptr) Load(in.addend + base + i, out);
    for (int k = 0; k < kCount; ++k) {
      const float xhat = (x[k] - mean) * rstd;
      out[k] = fmaf(dy[k] * weight[k] - mean_g - xhat * mean_gx, rstd, out[k]);
    }
    Store(out, dx + base + i);
  });
}

template <typename T>
__global__ void WeightStripKernel(RowShape shape, LayerNormUpstream<T> in, LayerNormSaved saved,
                                  float* partials) {
  SumStrip<2>(shape, partials, [&](int64_t row, int64_t column, float(&out)[2]) {
    const int64_t at = row * shape.width + column;
    const float dy = ToFloat(in.dy[at]);
    out[0] = dy * ((ToFloat(in.x[at]) - saved.mean[row]) * saved.rstd[row]);
    out[1] = dy;
  });
}

LaunchShape PerWarp(RowShape shape) {
  return {.blocks = BlocksFor(shape.rows, kWarps), .threads = kThreads};
}

}  // namespace

template <typename T>
LaunchError LayerNormForward(StreamHandle stream, RowShape shape, const T* x,
                             LayerNormAffine<T> affine, T* y, LayerNormSaved saved) {
  return ForWidth<T>(shape.width, [&](auto count) {
    return simt::Launch(&ForwardKernel<T, count()>, PerWarp(shape), stream, shape, x, affine, y,
                        saved);
  });
}

template <typename T>
LaunchError LayerNormInputGradient(StreamHandle stream, RowShape shape, LayerNormUpstream<T> in,
                                   const T* gamma, LayerNormSaved saved, T* dx) {
  return ForWidth<T>(shape.width, [&](auto count) {
    return simt::Launch(&InputGradientKernel<T, count()>, PerWarp(shape), stream, shape, in, gamma,
                        saved, dx);
  });
}

template <typename T, typename G>
LaunchError LayerNormWeightGradient(StreamHandle stream, RowShape shape, LayerNormUpstream<T> in,
                                    LayerNormSaved saved, LayerNormWeights<G> to, float* scratch) {
  const LaunchError error =
      simt::Launch(&WeightStripKernel<T>, StripLaunch<2>(shape), stream, shape, in, saved, scratch);
  if (error != nullptr) return error;
  return AddStrips<G, 2>(stream, shape, scratch,
                         {.to = {to.dgamma, to.dbeta}, .accumulate = to.accumulate});
}

template LaunchError LayerNormForward(StreamHandle, RowShape, const float*, LayerNormAffine<float>,
                                      float*, LayerNormSaved);
template LaunchError LayerNormForward(StreamHandle, RowShape, const uint16_t*,
                                      LayerNormAffine<uint16_t>, uint16_t*, LayerNormSaved);
template LaunchError LayerNormForward(StreamHandle, RowShape, const Half*, LayerNormAffine<Half>,
                                      Half*, LayerNormSaved);
template LaunchError LayerNormInputGradient(StreamHandle, RowShape, LayerNormUpstream<float>,
                                            const float*, LayerNormSaved, float*);
template LaunchError LayerNormInputGradient(StreamHandle, RowShape, LayerNormUpstream<uint16_t>,
                                            const uint16_t*, LayerNormSaved, uint16_t*);
template LaunchError LayerNormInputGradient(StreamHandle, RowShape, LayerNormUpstream<Half>,
                                            const Half*, LayerNormSaved, Half*);
template LaunchError LayerNormWeightGradient(StreamHandle, RowShape, LayerNormUpstream<float>,
                                             LayerNormSaved, LayerNormWeights<float>, float*);
template LaunchError LayerNormWeightGradient(StreamHandle, RowShape, LayerNormUpstream<uint16_t>,
                                             LayerNormSaved, LayerNormWeights<uint16_t>, float*);
template LaunchError LayerNormWeightGradient(StreamHandle, RowShape, LayerNormUpstream<Half>,
                                             LayerNormSaved, LayerNormWeights<Half>, float*);
template LaunchError LayerNormWeightGradient(StreamHandle, RowShape, LayerNormUpstream<uint16_t>,
                                             LayerNormSaved, LayerNormWeights<float>, float*);
template LaunchError LayerNormWeightGradient(StreamHandle, RowShape, LayerNormUpstream<Half>,
                                             LayerNormSaved, LayerNormWeights<float>, float*);

}  // namespace muster::kernels::cuda
