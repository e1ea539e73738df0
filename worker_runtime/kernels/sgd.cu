// Stochastic gradient descent in one pass, after the decision.
#include "worker_runtime/kernels/sgd.h"

#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"
#include "worker_runtime/kernels/device_runs.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kCount = kVector<float>;

// The bits of the host twin: the same roundings in the same order.
__global__ void UpdateKernel(SgdMomentum with, const RunsAtOnce runs,
                             const UpdateDecision* decisions, SgdArrays arrays, int64_t n) {
  const int64_t first = GlobalThread() * kCount;
  if (first >= n) return;
  const UpdateDecision* const decision = decisions + GroupOf(runs, first);
  if (decision->skipped == 1) return;
  const auto scale = static_cast<float>(decision->gradient_scale);
  const float decay = decision->decay, momentum = with.momentum;
  const auto rate = static_cast<float>(-decision->learning_rate);
  float gradient[kCount], value[kCount], buffer[kCount] = {};
  LoadUpTo(arrays.gradient, first, n, gradient);
  LoadUpTo(arrays.value, first, n, value);
  if (arrays.buffer != nullptr) LoadUpTo(arrays.buffer, first, n, buffer);
  for (int i = 0; i < kCount; ++i) {
    const float g = fmaf(decay, value[i], scale * gradient[i]);
    buffer[i] = fmaf(momentum, buffer[i], g);
    float direction = g;
    if (arrays.buffer != nullptr) {
      direction = with.nesterov ? fmaf(momentum, buffer[i], g) : buffer[i];
    }
    value[i] = fmaf(rate, direction, value[i]);
  }
  if (arrays.buffer != nullptr) StoreUpTo(buffer, arrays.buffer, first, n);
  StoreUpTo(value, arrays.value, first, n);
}

}  // namespace

LaunchError SgdUpdate(StreamHandle stream, SgdMomentum with, UpdateRuns runs,
                      const UpdateDecision* decisions, SgdArrays arrays) {
  return ForRunsAtOnce(runs, [&](int64_t begin, const RunsAtOnce& some, int64_t n) {
    const auto at = [begin](auto* array) { return array == nullptr ? nullptr : array + begin; };
    return simt::Launch(&UpdateKernel,
                        {.blocks = BlocksFor(n, kThreads * kCount), .threads = kThreads}, stream,
                        with, some, decisions,
                        SgdArrays{at(arrays.gradient), at(arrays.value), at(arrays.buffer)}, n);
  });
}

}  // namespace muster::kernels::cuda
