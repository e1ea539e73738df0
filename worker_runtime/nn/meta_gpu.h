// Sizes as a GPU has them.
#pragma once

#include "muster/device.h"

namespace muster {

// Who computes attention in 16 bits (muster/cuda_device.h).
enum class GpuAttention { kOwn, kLibrary, kLibrarySameBits };

// A meta device (Device::Meta) whose layers go the ways of a GPU's, and whose kernels take what
// those work in (cuda/cuda_operations.cc). With a library for attention, what either that or our
// kernels take.
const Device& MetaOfGpus(GpuAttention attention = GpuAttention::kOwn);

}  // namespace muster
