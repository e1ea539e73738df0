// SwiGLU, as swiglu.h has it, and its gradients: a block has a row.
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {
namespace {

template <typename T, int kCount>
__global__ void ForwardKernel(RowShape shape, const T* gate_up, T* y) {
  const int64_t row = blockIdx.x;
  const T* const gates = gate_up + 2 * row * shape.width;
  for (int64_t i = threadIdx.x * kCount; i < shape.width; i += kThreads * kCount) {
    float gate[kCount], up[kCount];
    Load(gates + i, gate);
    Load(gates + shape.width + i, up);
    for (int k = 0; k < kCount; ++k) up[k] *= gate[k] / (1.0f + expf(-gate[k]));
    Store(up, y + row * shape.width + i);
  }
}

template <typename T, int kCount>
__global__ void BackwardKernel(RowShape shape, const T* gate_up, const T* dy, T* dgate_up) {
  const int64_t row = blockIdx.x;
  const int64_t begin = 2 * row * shape.width;
  for (int64_t i = threadIdx.x * kCount; i < shape.width; i += kThreads * kCount) {
    float gate[kCount], up[kCount], d[kCount];
    Load(gate_up + begin + i, gate);
    Load(gate_up + begin + shape.width + i, up);
    Load(dy + row * shape.width + i, d);
    for (int k = 0; k < kCount; ++k) {
      const float decay = expf(-gate[k]);
      const float s = 1.0f / (1.0f + decay);
      // s (1 - s) = s s exp(-gate). Where exp(-gate) overflows, s is 0 and so is the bell.
      const float bell = s == 0.0f ? 0.0f : s * (s * decay);
      const float slope = fmaf(gate[k], bell, s);
      const float silu = gate[k] * s;
      gate[k] = d[k] * up[k] * slope;
      up[k] = d[k] * silu;
    }
    Store(gate, dgate_up + begin + i);
    Store(up, dgate_up + begin + shape.width + i);
  }
}

}  // namespace

template <typename T>
LaunchError SwiGluForward(StreamHandle stream, RowShape shape, const T* gate_up, T* y) {
  return ForWidth<T>(shape.width, [&](auto count) {
    return simt::Launch(&ForwardKernel<T, count()>, {.blocks = shape.rows, .threads = kThreads},
                        stream, shape, gate_up, y);
  });
}

template <typename T>
LaunchError SwiGluBackward(StreamHandle stream, RowShape shape, const T* gate_up, const T* dy,
                           T* dgate_up) {
  return ForWidth<T>(shape.width, [&](auto count) {
    return simt::Launch(&BackwardKernel<T, count()>, {.blocks = shape.rows, .threads = kThreads},
                        stream, shape, gate_up, dy, dgate_up);
  });
}

template LaunchError SwiGluForward(StreamHandle, RowShape, const float*, float*);
template LaunchError SwiGluForward(StreamHandle, RowShape, const uint16_t*, uint16_t*);
template LaunchError SwiGluForward(StreamHandle, RowShape, const Half*, Half*);
template LaunchError SwiGluBackward(StreamHandle, RowShape, const float*, const float*, float*);
template LaunchError SwiGluBackward(StreamHandle, RowShape, const uint16_t*, const uint16_t*,
                                    uint16_t*);
template LaunchError SwiGluBackward(StreamHandle, RowShape, const Half*, const Half*, Half*);

}  // namespace muster::kernels::cuda
