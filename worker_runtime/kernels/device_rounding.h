// How a thread rounds its elements by draws (rounding.h). Only `.cu` files include it.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/device_numbers.h"
#include "worker_runtime/kernels/rounding.h"

namespace muster::kernels::cuda {

// Philox4x32-10, the words of muster/rng.h.
// Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3
__device__ inline void Draw(RoundingDraws draws, int64_t low, int64_t high, uint32_t (&x)[4]) {
  x[0] = static_cast<uint32_t>(low);
  x[1] = static_cast<uint32_t>(static_cast<uint64_t>(low) >> 32);
  x[2] = static_cast<uint32_t>(high);
  x[3] = static_cast<uint32_t>(static_cast<uint64_t>(high) >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * x[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * x[2];
    x[0] = static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ draws.key_low;
    x[1] = static_cast<uint32_t>(product1);
    x[2] = static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ draws.key_high;
    x[3] = static_cast<uint32_t>(product0);
    draws.key_low += 0x9E3779B9;
    draws.key_high += 0xBB67AE85;
  }
}

// Up or down to a neighbour, with the chance that the 16 bits `draw` give it.
__device__ inline float RoundedBy(float x, uint32_t draw) {
  const uint32_t bits = BitsOf(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;  // neither a number nor a neighbour
  return FloatOf((bits + draw) & 0xffff0000u);
}

// Those of n elements from `first` on, as of update number `updates`.
__device__ inline void StoreRounded(const float (&master)[kElementsPerDraw], uint16_t* value,
                                    RoundingDraws draws, int64_t updates, int64_t first,
                                    int64_t n) {
  if (updates == 0) return StoreUpTo(master, value, first, n);
  uint32_t words[4];
  Draw(draws, updates, (draws.first_element + first) / kElementsPerDraw, words);
  float rounded[kElementsPerDraw];
  for (int i = 0; i < kElementsPerDraw; ++i) {
    rounded[i] = RoundedBy(master[i], words[i / 2] >> (i % 2 * 16) & 0xffffu);
  }
  StoreUpTo(rounded, value, first, n);
}

}  // namespace muster::kernels::cuda
