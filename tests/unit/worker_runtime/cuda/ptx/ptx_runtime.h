// CUDA's runtime for programs that are linked with nvcc's own objects and have no GPU: launches run
// the PTX that lies in them.
//
// The objects register their kernels here when the program starts, as they do with NVIDIA's
// library, and launch them by the same functions. Their PTX must not be compressed (nvcc's
// --compress-mode=none).
#pragma once

#include <map>
#include <string>

#include "tests/unit/worker_runtime/cuda/ptx/ptx_interpreter.h"

namespace muster::testing {

// The arrays of tests/support/kernel_memory.h.
PtxMemory& KernelMemory();

// What was launched since the program began, or since the last call, by the kernel's name as it is
// mangled.
std::map<std::string, PtxTraffic> TakeKernelTraffic();

}  // namespace muster::testing
