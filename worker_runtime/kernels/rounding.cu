// Values of bf16 from their masters, by the draws of an update that was taken.
#include "worker_runtime/kernels/rounding.h"

#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_rounding.h"

namespace muster::kernels::cuda {
namespace {

__global__ void RoundKernel(const UpdateDecision* decision, const float* master, uint16_t* value,
                            RoundingDraws draws, int64_t n) {
  const int64_t first = GlobalThread() * kElementsPerDraw;
  if (first >= n) return;
  float numbers[kElementsPerDraw];
  LoadUpTo(master, first, n, numbers);
  StoreRounded(numbers, value, draws, decision->updates, first, n);
}

}  // namespace

LaunchError RoundByDraws(StreamHandle stream, const UpdateDecision* decision, const float* master,
                         uint16_t* value, RoundingDraws draws, int64_t n) {
  return simt::Launch(&RoundKernel,
                      {.blocks = BlocksFor(n, kThreads * kElementsPerDraw), .threads = kThreads},
                      stream, decision, master, value, draws, n);
}

}  // namespace muster::kernels::cuda
