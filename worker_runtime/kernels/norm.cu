// Norms: a warp per row, which reads it again for each of its passes, from the cache.
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

// Where a row begins. Most lines are a row, and a division takes as long as many numbers.
__device__ inline int64_t BeginOf(const NormShape& shape, int64_t row) {
  if (shape.per_line == 1) return row * shape.line + shape.offset;
  const int64_t line = row / shape.per_line;
  return line * shape.line + shape.offset + (row - line * shape.per_line) * shape.width;
}

template <NormKind kKind>
__device__ float MeanOf(NormSaved saved, int64_t row) {
  return kKind == NormKind::kLayer ? saved.mean[row] : 0.0f;
}

template <typename T, int kCount, NormKind kKind>
__global__ void ForwardKernel(NormShape shape, const T* x, NormAffine<T> affine, T* y,
                              NormSaved saved) {
  const int64_t row = RowOfWarp();
  if (row >= shape.rows) return;
  const int64_t base = BeginOf(shape, row);
  float mean = 0;
  if constexpr (kKind == NormKind::kLayer) {
    float sum = 0;
    ForRow<kCount>(x + base, shape.width, [&](int64_t, const float(&numbers)[kCount]) {
      for (int k = 0; k < kCount; ++k) sum += numbers[k];
    });
    mean = WarpSum(sum) / static_cast<float>(shape.width);
  }
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
    if constexpr (kKind == NormKind::kLayer) saved.mean[row] = mean;
    saved.rstd[row] = rstd;
  }
  ForRow<kCount>(x + base, shape.width, [&](int64_t i, float(&numbers)[kCount]) {
    float gamma[kCount];
    Load(affine.gamma + i, gamma);
    if constexpr (kKind == NormKind::kLayer) {
      float beta[kCount];
      Load(affine.beta + i, beta);
      for (int k = 0; k < kCount; ++k) {
        numbers[k] = fmaf((numbers[k] - mean) * rstd, gamma[k], beta[k]);
      }
    } else {
      for (int k = 0; k < kCount; ++k) numbers[k] = numbers[k] * rstd * gamma[k];
    }
    Store(numbers, y + base + i);
  });
}

// The gradient of one row's input, by a warp.
template <typename T, int kCount, NormKind kKind>
__device__ void InputRow(const NormShape& shape, NormUpstream<T> in, const T* gamma,
                         NormSaved saved, T* dx, int64_t row) {
  const int64_t base = BeginOf(shape, row);
  const float mean = MeanOf<kKind>(saved, row);
  const float rstd = saved.rstd[row];
  float sum_g = 0;
  float sum_gx = 0;
  ForRow<kCount>(in.x + base, shape.width, [&](int64_t i, const float(&x)[kCount]) {
    float dy[kCount], weight[kCount];
    Load(in.dy + base + i, dy);
    Load(gamma + i, weight);
    for (int k = 0; k < kCount; ++k) {
      const float g = dy[k] * weight[k];
      if constexpr (kKind == NormKind::kLayer) sum_g += g;
      sum_gx = fmaf(g, (x[k] - mean) * rstd, sum_gx);
    }
  });
  const float mean_g =
      kKind == NormKind::kLayer ? WarpSum(sum_g) / static_cast<float>(shape.width) : 0.0f;
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

template <typename T, int kCount, NormKind kKind>
__global__ void InputGradientKernel(NormShape shape, NormUpstream<T> in, const T* gamma,
                                    NormSaved saved, T* dx) {
  const int64_t row = RowOfWarp();
  if (row < shape.rows) InputRow<T, kCount, kKind>(shape, in, gamma, saved, dx, row);
}

// Adds rows [first, last) to the sums of kCount columns from `column` on.
template <typename T, int kCount, NormKind kKind>
__device__ void AddRows(const NormShape& shape, NormUpstream<T> in, NormSaved saved, int64_t column,
                        int64_t first, int64_t last, float (&dgamma)[kCount],
                        float (&dbeta)[kCount]) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t begin = BeginOf(shape, row) + column;
    float x[kCount], dy[kCount];
    Load(in.x + begin, x);
    Load(in.dy + begin, dy);
    const float mean = MeanOf<kKind>(saved, row), rstd = saved.rstd[row];
    for (int k = 0; k < kCount; ++k) {
      dgamma[k] = fmaf(dy[k], (x[k] - mean) * rstd, dgamma[k]);
      dbeta[k] += dy[k];
    }
  }
}

// Columns whose sums a block holds.
constexpr int64_t kColumnsOfBlock = 4096;

// A block has a strip of rows, for which it computes the sums of its columns and, if wanted, the
// input's gradient: some rows for the columns of each thread, then those, which the cache still
// has, by a warp each. partials [strips, arrays, width].
template <typename T, int kCount, NormKind kKind>
__global__ void StripKernel(NormShape shape, NormUpstream<T> in, const T* gamma, NormSaved saved,
                            T* dx, int64_t strip_rows, float* partials) {
  constexpr int kArrays = kNormArrays<kKind>;
  auto* const sums = static_cast<float*>(simt::SharedMemory());  // [arrays, columns]
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kColumnsOfBlock;
  const int64_t left = shape.width - begin;
  const int64_t columns = left < kColumnsOfBlock ? left : kColumnsOfBlock;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * strip_rows;
  const int64_t last = first + strip_rows < shape.rows ? first + strip_rows : shape.rows;
  for (int64_t row = first; row < last; row += kWarps) {
    const int64_t end = row + kWarps < last ? row + kWarps : last;
    for (int64_t i = threadIdx.x * kCount; i < columns; i += kThreads * kCount) {
      float dgamma[kCount] = {}, dbeta[kCount] = {};
      if (row != first) {
        Load(sums + i, dgamma);
        if constexpr (kArrays == 2) Load(sums + columns + i, dbeta);
      }
      AddRows<T, kCount, kKind>(shape, in, saved, begin + i, row, end, dgamma, dbeta);
      Store(dgamma, sums + i);
      if constexpr (kArrays == 2) Store(dbeta, sums + columns + i);
    }
    if (dx == in.dy) __syncthreads();  // it is overwritten
    const int64_t own = row + simt::Warp();
    if (dx != nullptr && begin == 0 && own < last) {
      InputRow<T, kCount, kKind>(shape, in, gamma, saved, dx, own);
    }
  }
  float* const to = partials + static_cast<int64_t>(blockIdx.x) * kArrays * shape.width + begin;
  for (int64_t i = threadIdx.x * kCount; i < columns; i += kThreads * kCount) {
    for (int array = 0; array < kArrays; ++array) {
      float sum[kCount];
      Load(sums + array * columns + i, sum);
      Store(sum, to + array * shape.width + i);
    }
  }
}

LaunchShape PerWarp(const NormShape& shape) {
  return {.blocks = BlocksFor(shape.rows, kWarps), .threads = kThreads};
}

// Calls `run` with the kind, and with kVector<T> if all rows begin on its borders, else with 1.
template <typename T, typename Run>
LaunchError ForNorm(const NormShape& shape, Run run) {
  const auto of_kind = [&](auto kind) {
    const bool begin_on_borders = shape.line % kVector<T> == 0 && shape.offset % kVector<T> == 0;
    return ForWidth<T>(begin_on_borders ? shape.width : 1,
                       [&](auto count) { return run(count, kind); });
  };
  using enum NormKind;
  if (shape.kind == kRms) return of_kind(std::integral_constant<NormKind, kRms>());
  return of_kind(std::integral_constant<NormKind, kLayer>());
}

template <typename T>
LaunchError InputGradient(StreamHandle stream, const NormShape& shape, NormUpstream<T> in,
                          const T* gamma, NormSaved saved, T* dx) {
  return ForNorm<T>(shape, [&](auto count, auto kind) {
    return simt::Launch(&InputGradientKernel<T, count(), kind()>, PerWarp(shape), stream, shape, in,
                        gamma, saved, dx);
  });
}

}  // namespace

template <typename T>
LaunchError NormForward(StreamHandle stream, NormShape shape, const T* x, NormAffine<T> affine,
                        T* y, NormSaved saved) {
  return ForNorm<T>(shape, [&](auto count, auto kind) {
    return simt::Launch(&ForwardKernel<T, count(), kind()>, PerWarp(shape), stream, shape, x,
                        affine, y, saved);
  });
}

template <typename T, typename G>
LaunchError NormBackward(StreamHandle stream, NormShape shape, NormUpstream<T> in, const T* gamma,
                         NormSaved saved, T* dx, NormWeights<G> to, float* scratch) {
  if (to.dgamma == nullptr) return InputGradient(stream, shape, in, gamma, saved, dx);
  // Blocks of other columns read what one of them would overwrite.
  const bool dx_later = dx == in.dy && shape.width > kColumnsOfBlock;
  const int64_t strip_rows = NormStripRows(shape.rows);
  const int64_t strips = StripsOf(shape.rows, strip_rows);
  const int64_t columns = shape.width < kColumnsOfBlock ? shape.width : kColumnsOfBlock;
  LaunchError error = ForNorm<T>(shape, [&](auto count, auto kind) {
    return simt::Launch(
        &StripKernel<T, count(), kind()>,
        {.blocks = strips,
         .blocks_y = BlocksFor(shape.width, kColumnsOfBlock),
         .threads = kThreads,
         .shared_bytes = kNormArrays<kind()> * sizeof(float) * static_cast<size_t>(columns)},
        stream, shape, in, gamma, saved, dx_later ? nullptr : dx, strip_rows, scratch);
  });
  if (error != nullptr) return error;
  if (dx_later) error = InputGradient(stream, shape, in, gamma, saved, dx);
  if (error != nullptr) return error;
  const RowShape sums = {.rows = strips, .width = shape.width};
  if (shape.kind == NormKind::kRms) {
    return AddStrips<G, 1>(stream, sums, scratch, {.to = {to.dgamma}, .accumulate = to.accumulate});
  }
  return AddStrips<G, 2>(stream, sums, scratch,
                         {.to = {to.dgamma, to.dbeta}, .accumulate = to.accumulate});
}

template LaunchError NormForward(StreamHandle, NormShape, const float*, NormAffine<float>, float*,
                                 NormSaved);
template LaunchError NormForward(StreamHandle, NormShape, const uint16_t*, NormAffine<uint16_t>,
                                 uint16_t*, NormSaved);
template LaunchError NormForward(StreamHandle, NormShape, const Half*, NormAffine<Half>, Half*,
                                 NormSaved);
template LaunchError NormBackward(StreamHandle, NormShape, NormUpstream<float>, const float*,
                                  NormSaved, float*, NormWeights<float>, float*);
template LaunchError NormBackward(StreamHandle, NormShape, NormUpstream<uint16_t>, const uint16_t*,
                                  NormSaved, uint16_t*, NormWeights<uint16_t>, float*);
template LaunchError NormBackward(StreamHandle, NormShape, NormUpstream<Half>, const Half*,
                                  NormSaved, Half*, NormWeights<Half>, float*);
template LaunchError NormBackward(StreamHandle, NormShape, NormUpstream<uint16_t>, const uint16_t*,
                                  NormSaved, uint16_t*, NormWeights<float>, float*);
template LaunchError NormBackward(StreamHandle, NormShape, NormUpstream<Half>, const Half*,
                                  NormSaved, Half*, NormWeights<float>, float*);

}  // namespace muster::kernels::cuda
