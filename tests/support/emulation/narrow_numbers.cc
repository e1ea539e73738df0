#include "tests/support/emulation/narrow_numbers.h"

#include <algorithm>

#include "worker_runtime/kernels/cast.h"

namespace muster::testing {

std::vector<float> Widened(const void* from, int64_t count, DType type) {
  std::vector<float> wide(count);
  if (type == DType::kBf16) {
    kernels::Cast().bf16_to_f32(static_cast<const uint16_t*>(from), wide.data(), count);
  } else if (type == DType::kF16) {
    kernels::Cast().f16_to_f32(static_cast<const uint16_t*>(from), wide.data(), count);
  } else {
    const auto* numbers = static_cast<const float*>(from);
    wide.assign(numbers, numbers + count);
  }
  return wide;
}

void Store(const std::vector<float>& numbers, void* to, DType type) {
  const auto count = static_cast<int64_t>(numbers.size());
  if (type == DType::kBf16) {
    kernels::Cast().f32_to_bf16(numbers.data(), static_cast<uint16_t*>(to), count);
  } else if (type == DType::kF16) {
    kernels::Cast().f32_to_f16(numbers.data(), static_cast<uint16_t*>(to), count);
  } else {
    std::copy(numbers.begin(), numbers.end(), static_cast<float*>(to));
  }
}

}  // namespace muster::testing
