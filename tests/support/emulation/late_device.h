// A device whose memory the host cannot reach and whose kernels, the host's own, run late on an emulated
// GPU: what is computed on it has the bits of the host, if nothing is read too early or too late.
//
//   EmulatedCuda cuda({.seed = seed});
//   const LateDevice device(cuda);
#pragma once

#include "tests/support/emulation/cuda_memory_device.h"

namespace muster::testing {

class LateDevice final : public CudaMemoryDevice {
 public:
  // `cuda` is an EmulatedCuda, or what hands on to one, and outlives this.
  explicit LateDevice(CudaApi& cuda) : CudaMemoryDevice(cuda) {}

  absl::string_view name() const override { return "late"; }
  const Operations& operations(DType dtype) const override;
};

}  // namespace muster::testing
