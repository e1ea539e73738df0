// The ways to compute attention on a GPU.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace muster {

// What computes attention in bf16 and f16; in f32 our kernels do. One of them computes both passes
// of a layer.
enum class CudaAttention : uint8_t {
  kOwn,    // our kernels
  kCudnn,  // cuDNN: without it no device is opened, and a layer that it has not is a failure
  // cuDNN where it is there and has the layer, else our kernels, as for the same bits in every run:
  // those cuDNN has in several times the memory
  kAuto,
};

// Widest head that our kernels compute.
inline constexpr int64_t kCudaWidestHead = 128;

inline absl::string_view ToString(CudaAttention attention) {
  switch (attention) {
    case CudaAttention::kOwn:
      return "own";
    case CudaAttention::kCudnn:
      return "cudnn";
    case CudaAttention::kAuto:
      return "auto";
  }
  return "";
}

}  // namespace muster
