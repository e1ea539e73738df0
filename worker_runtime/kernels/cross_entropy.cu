// Softmax and cross-entropy: a block per row of logits, which it reads twice and writes once. The
// second time it begins with what it read last, and blocks of a wide row are so large that few rows
// are under way at once: their second read is from the cache.
#include "worker_runtime/kernels/cross_entropy.h"

#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {
namespace {

// So many that of two blocks in a multiprocessor all registers are used and two rows are under way.
constexpr int kLossThreadsMax = 768;

// Some vectors for each thread, and as many threads for a vocabulary as a block may have.
int ThreadsFor(int64_t vectors) {
  constexpr int64_t kVectorsOfThread = 4;
  const int64_t wanted = BlocksFor(vectors, kVectorsOfThread * kThreads) * kThreads;
  return static_cast<int>(wanted < kLossThreadsMax ? wanted : kLossThreadsMax);
}

// Some of a row: its largest logit, and the sum of exp(logit - max).
struct Softmax {
  float max = kLowest;
  float sum = 0;
};

__device__ inline Softmax Joined(Softmax a, Softmax b) {
  const float max = a.max > b.max ? a.max : b.max;
  return {.max = max, .sum = a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}

__device__ inline Softmax OfWarp(Softmax own) {
  for (int mask = simt::kWarpSize / 2; mask > 0; mask /= 2) {
    const Softmax other = {.max = simt::ShuffleXor(own.max, mask),
                           .sum = simt::ShuffleXor(own.sum, mask)};
    // Both lanes of a pair join in the same order, so they get the same bits.
    own = (simt::Lane() & mask) == 0 ? Joined(own, other) : Joined(other, own);
  }
  return own;
}

// Every thread gets the same bits. A barrier.
__device__ inline Softmax OfBlock(Softmax own) {
  auto* warps = static_cast<Softmax*>(simt::SharedMemory());  // [warps of the block]
  own = OfWarp(own);
  if (simt::Lane() == 0) warps[simt::Warp()] = own;
  __syncthreads();
  Softmax all = warps[0];
  const int count = static_cast<int>(blockDim.x) / simt::kWarpSize;
  for (int warp = 1; warp < count; ++warp) all = Joined(all, warps[warp]);
  return all;
}

// Columns of a block that its threads take at a time.
template <int kCount>
__device__ int64_t Stride() {
  return static_cast<int64_t>(blockDim.x) * kCount;
}

// What is behind the end of the row weighs nothing. `z`: the logits from `first` on.
template <int kCount>
__device__ void LeaveOut(LogitShape shape, int64_t first, float (&z)[kCount]) {
  if (first + kCount <= shape.width) return;
  for (int k = 0; k < kCount; ++k) {
    if (first + k >= shape.width) z[k] = kLowest;
  }
}

template <int kCount, typename T>
__device__ Softmax OfThread(LogitShape shape, const T* logits) {
  Softmax own;
  for (int64_t i = threadIdx.x * kCount; i < shape.width; i += Stride<kCount>()) {
    float z[kCount];
    Load(logits + i, z);
    LeaveOut(shape, i, z);
    float max = own.max;
    for (int k = 0; k < kCount; ++k) max = z[k] > max ? z[k] : max;
    own.sum *= expf(own.max - max);
    for (int k = 0; k < kCount; ++k) own.sum += expf(z[k] - max);
    own.max = max;
  }
  return own;
}

// Writes from the end of the row to its beginning, and zeros behind its end.
template <int kCount, typename T>
__device__ void WriteGradient(LogitShape shape, T* logits, Softmax row, int64_t target,
                              float scale) {
  const float factor = scale / row.sum;
  const int64_t first = threadIdx.x * kCount;
  const int last = static_cast<int>(shape.stride - 1);
  int64_t i = first + last - last % static_cast<int>(Stride<kCount>());
  if (i >= shape.stride) i -= Stride<kCount>();
  for (; i >= 0; i -= Stride<kCount>()) {
    float z[kCount];
    Load(logits + i, z);
    LeaveOut(shape, i, z);
    for (int k = 0; k < kCount; ++k) {
      const float p = factor * expf(z[k] - row.max);
      z[k] = i + k == target ? p - scale : p;
    }
    Store(z, logits + i);
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kLossThreadsMax)
    RowKernel(LogitShape shape, T* logits, const int32_t* targets, const float* gradient_scale,
              double* losses) {
  T* row = logits + static_cast<int64_t>(blockIdx.x) * shape.stride;
  const int32_t target = targets[blockIdx.x];
  if (target == kIgnoredTarget) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    const float zeros[kCount] = {};
    for (int64_t i = threadIdx.x * kCount; gradient_scale != nullptr && i < shape.stride;
         i += Stride<kCount>()) {
      Store(zeros, row + i);
    }
    return;
  }
  const Softmax softmax = OfBlock(OfThread<kCount>(shape, row));
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = log(static_cast<double>(softmax.sum)) +
                         (static_cast<double>(softmax.max) - ToFloat(row[target]));
  }
  if (gradient_scale == nullptr) return;
  __syncthreads();  // the target's logit has been read
  WriteGradient<kCount>(shape, row, softmax, target, gradient_scale[0]);
}

// One thread.
template <typename T>
__global__ void RoundKernel(const double* from, T* to) {
  if (threadIdx.x == 0) to[0] = FromFloat<T>(static_cast<float>(from[0]));
}

}  // namespace

template <typename T>
LaunchError SumLosses(StreamHandle stream, const double* losses, int64_t n, double* scratch,
                      double* sum, T* value) {
  const LaunchError error = TreeSum(stream, losses, n, scratch, sum);
  if (error != nullptr) return error;
  return simt::Launch(&RoundKernel<T>, {.blocks = 1, .threads = simt::kWarpSize}, stream,
                      static_cast<const double*>(sum), value);
}
template LaunchError SumLosses(StreamHandle, const double*, int64_t, double*, double*, float*);
template LaunchError SumLosses(StreamHandle, const double*, int64_t, double*, double*, uint16_t*);
template LaunchError SumLosses(StreamHandle, const double*, int64_t, double*, double*, Half*);

template <typename T>
LaunchError CrossEntropyRows(StreamHandle stream, LogitShape shape, T* logits,
                             const int32_t* targets, const float* gradient_scale, double* losses) {
  return ForWidth<T>(shape.stride, [&](auto count) {
    const int threads = ThreadsFor(BlocksFor(shape.stride, count()));
    return simt::Launch(&RowKernel<T, count()>,
                        {.blocks = shape.rows,
                         .threads = threads,
                         .shared_bytes = threads / simt::kWarpSize * sizeof(Softmax)},
                        stream, shape, logits, targets, gradient_scale, losses);
  });
}
template LaunchError CrossEntropyRows(StreamHandle, LogitShape, float*, const int32_t*,
                                      const float*, double*);
template LaunchError CrossEntropyRows(StreamHandle, LogitShape, uint16_t*, const int32_t*,
                                      const float*, double*);
template LaunchError CrossEntropyRows(StreamHandle, LogitShape, Half*, const int32_t*, const float*,
                                      double*);

}  // namespace muster::kernels::cuda
