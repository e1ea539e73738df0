// What a kernel of the device is launched with. Plain C++: who launches kernels need not know CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster::kernels {

// A cudaStream_t. Kernels of one stream run one after the other.
using StreamHandle = void*;

// Why a kernel was not put on its stream, in words that live until the thread's next launch; null:
// it was. A kernel that fails while it runs shows in a later call, as CUDA does it.
using LaunchError = const char*;

struct LaunchShape {
  int64_t blocks = 0;  // none: there is nothing to do
  int64_t blocks_y = 1;
  int threads = 0;  // per block: a multiple of 32
  size_t shared_bytes = 0;
};

}  // namespace muster::kernels
