// Sizes as a GPU has them.
#pragma once

#include "muster/device.h"

namespace muster {

// A meta device (Device::Meta) whose layers go the ways of a GPU's, and whose kernels take what those work in
// (cuda/cuda_operations.cc).
const Device& MetaOfGpus();

}  // namespace muster
