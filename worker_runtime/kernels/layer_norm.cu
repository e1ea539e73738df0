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

// The gradient of one row's input, by a warp.
template <typename T, int kCount>
__device__ void InputRow(RowShape shape, LayerNormUpstream<T> in, const T* gamma,
                         LayerNormSaved saved, T* dx, int64_t row) {
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

template <typename T, int kCount>
__global__ void InputGradientKernel(RowShape shape, LayerNormUpstream<T> in, const T* gamma,
                                    LayerNormSaved saved, T* dx) {
  const int64_t row = RowOfWarp();
  if (row < shape.rows) InputRow<T, kCount>(shape, in, gamma, saved, dx, row);
}

// Adds rows [first, last) to the sums of kCount columns from `column` on.
template <typename T, int kCount>
__device__ void AddRows(RowShape shape, LayerNormUpstream<T> in, LayerNormSaved saved,
                        int64_t column, int64_t first, int64_t last, float (&dgamma)[kCount],
                        float (&dbeta)[kCount]) {
  for (int64_t row = first; row < last; ++row) {
    float x[kCount], dy[kCount];
    Load(in.x + row * shape.width + column, x);
    Load(in.dy + row * shape.width + column, dy);
    const float mean = saved.mean[row], rstd = saved.rstd[row];
    for (int k = 0; k < kCount; ++k) {
      dgamma[k] = fmaf(dy[k], (x[k] - mean) * rstd, dgamma[k]);
      dbeta[k] += dy[k];
    }
  }
}

// Columns whose sums a block holds.
constexpr int64_t kColumnsOfBlock = 4096;

// A block has a strip of rows, for which it computes the input's gradient, if wanted, and the sums
// of its columns: a row for each warp, then those rows, which the cache still has, for the columns
// of each thread. partials [strips, 2, width].
template <typename T, int kCount>
__global__ void StripKernel(RowShape shape, LayerNormUpstream<T> in, const T* gamma,
                            LayerNormSaved saved, T* dx, int64_t strip_rows, float* partials) {
  auto* const sums = static_cast<float*>(simt::SharedMemory());  // [2, columns]
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kColumnsOfBlock;
  const int64_t left = shape.width - begin;
  const int64_t columns = left < kColumnsOfBlock ? left : kColumnsOfBlock;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * strip_rows;
  const int64_t last = first + strip_rows < shape.rows ? first + strip_rows : shape.rows;
  for (int64_t row = first; row < last; row += kWarps) {
    const int64_t own = row + simt::Warp();
    if (dx != nullptr && begin == 0 && own < last) {
      InputRow<T, kCount>(shape, in, gamma, saved, dx, own);
    }
    const int64_t end = row + kWarps < last ? row + kWarps : last;
    for (int64_t i = threadIdx.x * kCount; i < columns; i += kThreads * kCount) {
      float dgamma[kCount] = {}, dbeta[kCount] = {};
      if (row != first) {
        Load(sums + i, dgamma);
        Load(sums + columns + i, dbeta);
      }
      AddRows<T, kCount>(shape, in, saved, begin + i, row, end, dgamma, dbeta);
      Store(dgamma, sums + i);
      Store(dbeta, sums + columns + i);
    }
  }
  float* const to = partials + static_cast<int64_t>(blockIdx.x) * 2 * shape.width + begin;
  for (int64_t i = threadIdx.x * kCount; i < columns; i += kThreads * kCount) {
    float sum[kCount];
    Load(sums + i, sum);
    Store(sum, to + i);
    Load(sums + columns + i, sum);
    Store(sum, to + shape.width + i);
  }
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

template <typename T, typename G>
LaunchError LayerNormBackward(StreamHandle stream, RowShape shape, LayerNormUpstream<T> in,
                              const T* gamma, LayerNormSaved saved, T* dx, LayerNormWeights<G> to,
                              float* scratch) {
  if (to.dgamma == nullptr) {
    return ForWidth<T>(shape.width, [&](auto count) {
      return simt::Launch(&InputGradientKernel<T, count()>, PerWarp(shape), stream, shape, in,
                          gamma, saved, dx);
    });
  }
  const int64_t strip_rows = NormStripRows(shape), strips = StripsOf(shape, strip_rows);
  const int64_t columns = shape.width < kColumnsOfBlock ? shape.width : kColumnsOfBlock;
  const LaunchError error = ForWidth<T>(shape.width, [&](auto count) {
    return simt::Launch(&StripKernel<T, count()>,
                        {.blocks = strips,
                         .blocks_y = BlocksFor(shape.width, kColumnsOfBlock),
                         .threads = kThreads,
                         .shared_bytes = 2 * sizeof(float) * static_cast<size_t>(columns)},
                        stream, shape, in, gamma, saved, dx, strip_rows, scratch);
  });
  if (error != nullptr) return error;
  return AddStrips<G, 2>(stream, {.rows = strips, .width = shape.width}, scratch,
                         {.to = {to.dgamma, to.dbeta}, .accumulate = to.accumulate});
}

template LaunchError LayerNormForward(StreamHandle, RowShape, const float*, LayerNormAffine<float>,
                                      float*, LayerNormSaved);
template LaunchError LayerNormForward(StreamHandle, RowShape, const uint16_t*,
                                      LayerNormAffine<uint16_t>, uint16_t*, LayerNormSaved);
template LaunchError LayerNormForward(StreamHandle, RowShape, const Half*, LayerNormAffine<Half>,
                                      Half*, LayerNormSaved);
template LaunchError LayerNormBackward(StreamHandle, RowShape, LayerNormUpstream<float>,
                                       const float*, LayerNormSaved, float*,
                                       LayerNormWeights<float>, float*);
template LaunchError LayerNormBackward(StreamHandle, RowShape, LayerNormUpstream<uint16_t>,
                                       const uint16_t*, LayerNormSaved, uint16_t*,
                                       LayerNormWeights<uint16_t>, float*);
template LaunchError LayerNormBackward(StreamHandle, RowShape, LayerNormUpstream<Half>, const Half*,
                                       LayerNormSaved, Half*, LayerNormWeights<Half>, float*);
template LaunchError LayerNormBackward(StreamHandle, RowShape, LayerNormUpstream<uint16_t>,
                                       const uint16_t*, LayerNormSaved, uint16_t*,
                                       LayerNormWeights<float>, float*);
template LaunchError LayerNormBackward(StreamHandle, RowShape, LayerNormUpstream<Half>, const Half*,
                                       LayerNormSaved, Half*, LayerNormWeights<float>, float*);

}  // namespace muster::kernels::cuda
