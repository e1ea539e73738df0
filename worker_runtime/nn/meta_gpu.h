// Sizes as a GPU has them.
#pragma once

#include <functional>
#include <memory>

#include "muster/device.h"
#include "muster/dtype.h"
#include "worker_runtime/kernels/attention.h"
#include "worker_runtime/kernels/library_attention.h"

namespace muster {

// What computes attention in 16 bits (muster/cuda_device.h).
enum class GpuAttention { kOwn, kLibrary, kLibrarySameBits };

// A meta device (Device::Meta) whose layers go the ways of a GPU's, and whose kernels take what
// those work in (cuda/cuda_operations.cc). With a library for attention, what either that or our
// kernels take.
const Device& MetaOfGpus(GpuAttention attention = GpuAttention::kOwn);

// What a library that is there works in, of which the formula may know too little.
using WorkspaceOf =
    std::function<kernels::AttentionWorkspace(const kernels::AttentionShape& shape, DType type)>;
// `attention` is by a library. Threads: those of `workspace_of`.
std::unique_ptr<const Device> MakeMetaOfGpu(GpuAttention attention, WorkspaceOf workspace_of);

}  // namespace muster
