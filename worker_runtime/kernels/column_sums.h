// Sums over the rows of a matrix. Only `.cu` files include it.
//
// First each block adds up a strip of rows. Then the sums of strips are added: warps take them in
// turn, and what the warps have is added in their order. So the order depends on the shape alone.
#pragma once

#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {

inline constexpr size_t kStripBytes = sizeof(float) * kThreads;

// The sums of what warps have for each of 32 columns, in the first warp. `shared` [threads].
__device__ inline float AddWarps(float* shared, float own) {
  shared[threadIdx.x] = own;
  __syncthreads();
  float sum = 0;
  if (simt::Warp() != 0) return sum;
  for (int i = simt::Lane(); i < static_cast<int>(blockDim.x); i += simt::kWarpSize) {
    sum += shared[i];
  }
  return sum;
}

// The sums of kStripRows rows for 32 columns, of which `term(row, column)` gives the terms.
// partials [strips, width].
template <typename Term>
__device__ void SumStrip(RowShape shape, float* partials, const Term& term) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * simt::kWarpSize + simt::Lane();
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kStripRows;
  const int64_t last = first + kStripRows < shape.rows ? first + kStripRows : shape.rows;
  float sum = 0;
  if (column < shape.width) {
    for (int64_t row = first + simt::Warp(); row < last; row += kWarps) sum += term(row, column);
  }
  sum = AddWarps(static_cast<float*>(simt::SharedMemory()), sum);
  if (simt::Warp() == 0 && column < shape.width) partials[blockIdx.y * shape.width + column] = sum;
}

inline LaunchShape StripLaunch(RowShape shape) {
  return {.blocks = BlocksFor(shape.width, simt::kWarpSize),
          .blocks_y = StripsOf(shape.rows, kStripRows),
          .threads = kThreads,
          .shared_bytes = kStripBytes};
}

template <typename T, int kArrays>
struct ColumnResults {
  T* to[kArrays];
  bool accumulate;
};

// More warps than elsewhere: there are few columns, and each waits for its strips.
inline constexpr int kAddingThreads = 512;

// A block has 32 columns of one array. partials [strips, kArrays, width].
template <typename T, int kArrays>
__global__ void __launch_bounds__(kAddingThreads)
    AddStripsKernel(RowShape strips, const float* partials, ColumnResults<T, kArrays> results) {
  constexpr int kAddingWarps = kAddingThreads / simt::kWarpSize;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * simt::kWarpSize + simt::Lane();
  const int64_t array = blockIdx.y;
  float sum = 0;
  if (column < strips.width) {
    for (int64_t s = simt::Warp(); s < strips.rows; s += kAddingWarps) {
      sum += partials[(s * kArrays + array) * strips.width + column];
    }
  }
  sum = AddWarps(static_cast<float*>(simt::SharedMemory()), sum);
  if (simt::Warp() != 0 || column >= strips.width) return;
  static_assert(kArrays <= 2);  // an array of arguments is not indexed: it would be copied for that
  T* const to = (array == 0 ? results.to[0] : results.to[kArrays - 1]) + column;
  *to = FromFloat<T>(results.accumulate ? ToFloat(*to) + sum : sum);
}

// `strips`: how many, and of how many columns.
template <typename T, int kArrays>
LaunchError AddStrips(StreamHandle stream, RowShape strips, const float* partials,
                      ColumnResults<T, kArrays> results) {
  return simt::Launch(&AddStripsKernel<T, kArrays>,
                      {.blocks = BlocksFor(strips.width, simt::kWarpSize),
                       .blocks_y = kArrays,
                       .threads = kAddingThreads,
                       .shared_bytes = sizeof(float) * kAddingThreads},
                      stream, strips, partials, results);
}

}  // namespace muster::kernels::cuda
