#include "worker_runtime/nn/rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "muster/rng.h"
#include "muster/sixteen_bits.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/cast.h"

namespace muster {
namespace {

uint16_t RoundedBy(float master, uint32_t draw) {
  if (!std::isfinite(master)) return ToBf16(master);
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(master) + draw) >> 16);
}

}  // namespace

void RoundByDraws(absl::Span<const float> masters, kernels::RoundingDraws draws, int64_t updates,
                  uint16_t* values) {
  constexpr int64_t kAtOnce = kernels::kElementsPerDraw;
  MUSTER_CHECK(draws.first_element % kAtOnce == 0);
  const auto n = static_cast<int64_t>(masters.size());
  if (updates == 0) return kernels::Cast().f32_to_bf16(masters.data(), values, n);
  const PhiloxKey key = {draws.key_low, draws.key_high};
  for (int64_t first = 0; first < n; first += kAtOnce) {
    const auto block = static_cast<uint64_t>((draws.first_element + first) / kAtOnce);
    const PhiloxWords words = PhiloxBlock(key, {static_cast<uint64_t>(updates), block});
    const int64_t count = std::min(kAtOnce, n - first);
    for (int64_t i = 0; i < count; ++i) {
      values[first + i] = RoundedBy(masters[first + i], words[i / 2] >> (i % 2 * 16) & 0xffff);
    }
  }
}

}  // namespace muster
