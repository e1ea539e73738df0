// GELU (tanh form, as gelu.h has it) with the bias before it, and its gradient.
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {
namespace {

constexpr float kMinusTwoSqrt2OverPi = -1.5957691216057308f;
constexpr float kCubic = 0.044715f;

// exp(-2u)
__device__ inline float Decay(float x, float x2) {
  return expf(x * fmaf(x2, kMinusTwoSqrt2OverPi * kCubic, kMinusTwoSqrt2OverPi));
}

// A block has a row.
template <typename T, int kCount>
__global__ void ForwardKernel(RowShape shape, BiasGelu<T> in, T* y) {
  const int64_t base = static_cast<int64_t>(blockIdx.x) * shape.width;
  for (int64_t i = threadIdx.x * kCount; i < shape.width; i += kThreads * kCount) {
    float x[kCount];
    Load(in.x + base + i, x);
    if (in.bias != nullptr) {
      float bias[kCount];
      Load(in.bias + i, bias);
      // Backward sees what was written, so this does.
      for (int k = 0; k < kCount; ++k) x[k] = ToFloat(FromFloat<T>(x[k] + bias[k]));
      Store(x, in.pre + base + i);
    }
    for (int k = 0; k < kCount; ++k) x[k] = x[k] / (1.0f + Decay(x[k], x[k] * x[k]));
    Store(x, y + base + i);
  }
}

template <typename T>
__global__ void BackwardKernel(const T* pre, const T* dy, T* dx, int64_t n) {
  constexpr int kCount = kVector<T>;
  const int64_t first = GlobalThread() * kCount;
  if (first >= n) return;
  float x[kCount], d[kCount];
  LoadUpTo(pre, first, n, x);
  LoadUpTo(dy, first, n, d);
  for (int k = 0; k < kCount; ++k) {
    const float x2 = x[k] * x[k];
    const float decay = Decay(x[k], x2);
    const float s = 1.0f / (1.0f + decay);
    const float two_du = fmaf(x2, -3 * kMinusTwoSqrt2OverPi * kCubic, -kMinusTwoSqrt2OverPi);
    // s (1 - s) = s s exp(-2u). Where exp(-2u) overflows, s is 0 and so is the bell.
    const float bell = s == 0.0f ? 0.0f : s * (s * decay);
    d[k] *= fmaf(x[k] * bell, two_du, s);
  }
  StoreUpTo(d, dx, first, n);
}

}  // namespace

template <typename T>
LaunchError BiasGeluForward(StreamHandle stream, RowShape shape, BiasGelu<T> in, T* y) {
  return ForWidth<T>(shape.width, [&](auto count) {
    return simt::Launch(&ForwardKernel<T, count()>, {.blocks = shape.rows, .threads = kThreads},
                        stream, shape, in, y);
  });
}

template <typename T>
LaunchError GeluBackward(StreamHandle stream, const T* pre, const T* dy, T* dx, int64_t n) {
  return simt::Launch(&BackwardKernel<T>,
                      {.blocks = BlocksFor(n, kThreads * kVector<T>), .threads = kThreads}, stream,
                      pre, dy, dx, n);
}

template LaunchError BiasGeluForward(StreamHandle, RowShape, BiasGelu<float>, float*);
template LaunchError BiasGeluForward(StreamHandle, RowShape, BiasGelu<uint16_t>, uint16_t*);
template LaunchError BiasGeluForward(StreamHandle, RowShape, BiasGelu<Half>, Half*);
template LaunchError GeluBackward(StreamHandle, const float*, const float*, float*, int64_t);
template LaunchError GeluBackward(StreamHandle, const uint16_t*, const uint16_t*, uint16_t*,
                                  int64_t);
template LaunchError GeluBackward(StreamHandle, const Half*, const Half*, Half*, int64_t);

}  // namespace muster::kernels::cuda
