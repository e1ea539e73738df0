// Squares by block, and their sum: the order of every addition is the host twin's.
#include "worker_runtime/kernels/sum_of_squares.h"

#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {
namespace {

// Lanes per norm block: those of a Pack of floats on the host.
constexpr int kLanes = 16;
constexpr int kBlocksPerBlock = kThreads / kLanes;
constexpr size_t kLeafBytes = kTreeLeaves * sizeof(double);

// Sixteen lanes have a norm block: each adds up every sixteenth number, then they add in a tree in
// double.
template <typename T>
__global__ void SquaresKernel(const T* x, int64_t n, double* partials) {
  const int64_t block = GlobalThread() / kLanes;
  const int64_t first = block * kNormBlock;
  const int64_t last = first + kNormBlock < n ? first + kNormBlock : n;
  const int lane = simt::Lane() % kLanes;
  float sum = 0;
  for (int64_t i = first + lane; i < last; i += kLanes) {
    const float number = ToFloat(x[i]);
    sum = fmaf(number, number, sum);
  }
  double wide = sum;
  for (int width = kLanes / 2; width > 0; width /= 2) wide += simt::ShuffleXor(wide, width);
  if (lane == 0 && first < n) partials[block] = wide;
}

// A block adds kTreeLeaves neighbours, a whole subtree or the end of the tree, in pairs of
// neighbours.
__global__ void TreeKernel(const double* values, int64_t n, double* to) {
  auto* leaves = static_cast<double*>(simt::SharedMemory());  // [kTreeLeaves]
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTreeLeaves;
  const int64_t left = n - first;
  const int count = static_cast<int>(left < kTreeLeaves ? left : kTreeLeaves);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    leaves[i] = values[first + i];
  }
  for (int step = 1; step < count; step *= 2) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x) * 2 * step; i + step < count;
         i += kThreads * 2 * step) {
      leaves[i] += leaves[i + step];
    }
  }
  // Thread 0 made the last sum itself, or read the only leaf.
  if (threadIdx.x == 0) to[blockIdx.x] = count > 0 ? leaves[0] : 0.0;
}

}  // namespace

template <typename T>
LaunchError SquaresByBlock(StreamHandle stream, const T* x, int64_t n, double* partials) {
  return simt::Launch(&SquaresKernel<T>,
                      {.blocks = BlocksFor(NumNormBlocks(n), kBlocksPerBlock), .threads = kThreads},
                      stream, x, n, partials);
}
template LaunchError SquaresByBlock(StreamHandle, const float*, int64_t, double*);
template LaunchError SquaresByBlock(StreamHandle, const uint16_t*, int64_t, double*);
template LaunchError SquaresByBlock(StreamHandle, const Half*, int64_t, double*);

LaunchError TreeSum(StreamHandle stream, const double* values, int64_t n, double* scratch,
                    double* to) {
  while (n > kTreeLeaves) {
    const int64_t roots = BlocksFor(n, kTreeLeaves);
    const LaunchError error = simt::Launch(
        &TreeKernel, {.blocks = roots, .threads = kThreads, .shared_bytes = kLeafBytes}, stream,
        values, n, scratch);
    if (error != nullptr) return error;
    values = scratch;
    scratch += roots;
    n = roots;
  }
  return simt::Launch(&TreeKernel, {.blocks = 1, .threads = kThreads, .shared_bytes = kLeafBytes},
                      stream, values, n, to);
}

}  // namespace muster::kernels::cuda
