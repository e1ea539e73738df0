// A device whose memory the host cannot reach and whose kernels, the host's own, run late on an
// emulated GPU: what is computed on it has the bits of the host, if nothing is read too early or
// too late. But for its kernels it is the device of a GPU (worker_runtime/cuda/cuda_device.h),
// lanes and all.
//
//   EmulatedCuda cuda({.seed = seed});
//   const std::unique_ptr<Device> device = MakeLateDevice(cuda);
#pragma once

#include <memory>

#include "muster/device.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace muster::testing {

// `cuda` is an EmulatedCuda, or what hands on to one, and outlives the device.
std::unique_ptr<Device> MakeLateDevice(CudaApi& cuda);

}  // namespace muster::testing
