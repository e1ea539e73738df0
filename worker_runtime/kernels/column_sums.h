// Sums over the rows of a matrix, kArrays of them at a time. Only `.cu` files include it.
//
// First each block adds up a strip of kStripRows rows for 32 columns: its warps take the rows in
// turn, and their sums are added in the order of the warps. Then a thread per column adds the
// strips in order. So the order depends on the shape alone.
#pragma once

#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {

template <int kArrays>
inline constexpr size_t kStripBytes = sizeof(float) * kArrays* kThreads;

// `terms(row, column, out)` gives the terms of a place. partials [strips, kArrays, width].
template <int kArrays, typename Terms>
__device__ void SumStrip(RowShape shape, float* partials, const Terms& terms) {
  auto* shared = static_cast<float*>(simt::SharedMemory());  // [kArrays, kThreads]
  const int64_t column = static_cast<int64_t>(blockIdx.x) * simt::kWarpSize + simt::Lane();
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kStripRows;
  const int64_t last = first + kStripRows < shape.rows ? first + kStripRows : shape.rows;
  float sums[kArrays] = {};
  if (column < shape.width) {
    for (int64_t row = first + simt::Warp(); row < last; row += kWarps) {
      float out[kArrays];
      terms(row, column, out);
      for (int a = 0; a < kArrays; ++a) sums[a] += out[a];
    }
  }
  for (int a = 0; a < kArrays; ++a) shared[a * kThreads + threadIdx.x] = sums[a];
  __syncthreads();
  if (simt::Warp() != 0 || column >= shape.width) return;
  for (int a = 0; a < kArrays; ++a) {
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      sum += shared[a * kThreads + warp * simt::kWarpSize + simt::Lane()];
    }
    partials[(blockIdx.y * kArrays + a) * shape.width + column] = sum;
  }
}

template <int kArrays>
LaunchShape StripLaunch(RowShape shape) {
  return {.blocks = BlocksFor(shape.width, simt::kWarpSize),
          .blocks_y = BlocksFor(shape.rows, kStripRows),
          .threads = kThreads,
          .shared_bytes = kStripBytes<kArrays>};
}

template <typename T, int kArrays>
struct ColumnResults {
  T* to[kArrays];
  bool accumulate;
};

template <typename T, int kArrays>
__global__ void AddStripsKernel(int64_t strips, int64_t width, const float* partials,
                                ColumnResults<T, kArrays> results) {
  const int64_t column = GlobalThread();
  if (column >= width) return;
  for (int a = 0; a < kArrays; ++a) {
    float sum = results.accumulate ? ToFloat(results.to[a][column]) : 0.0f;
    for (int64_t s = 0; s < strips; ++s) sum += partials[(s * kArrays + a) * width + column];
    results.to[a][column] = FromFloat<T>(sum);
  }
}

template <typename T, int kArrays>
LaunchError AddStrips(StreamHandle stream, RowShape shape, const float* partials,
                      ColumnResults<T, kArrays> results) {
  return simt::Launch(&AddStripsKernel<T, kArrays>,
                      {.blocks = BlocksFor(shape.width, kThreads), .threads = kThreads}, stream,
                      BlocksFor(shape.rows, kStripRows), shape.width, partials, results);
}

}  // namespace muster::kernels::cuda
