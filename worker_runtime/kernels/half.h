// f16 as the kernels of a CUDA device hold it. bf16 is uint16_t there.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct Half {
  uint16_t bits;
  friend bool operator==(Half, Half) = default;
};

}  // namespace muster::kernels
