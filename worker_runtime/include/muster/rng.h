// Random numbers that depend on their coordinates alone.
//
//   uint32_t word = PhiloxBlock(PhiloxKey(seed, stream), {step, index})[0];
//
// There is no state: the same (seed, stream, coordinates) give the same number on every rank, in
// every order and on every machine, so a draw never depends on how work is spread. The normal
// numbers below use only correctly rounded operations.
//
// Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3
// (Philox4x32-10)
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

using PhiloxWords = std::array<uint32_t, 4>;

struct PhiloxKey {
  uint32_t low = 0;
  uint32_t high = 0;
};

struct PhiloxCounter {
  uint64_t low = 0;
  uint64_t high = 0;
};

// Ten rounds: four words for one counter.
// Threads: pure.
constexpr PhiloxWords PhiloxBlock(PhiloxKey key, PhiloxCounter counter) {
  PhiloxWords x = {static_cast<uint32_t>(counter.low), static_cast<uint32_t>(counter.low >> 32),
                   static_cast<uint32_t>(counter.high), static_cast<uint32_t>(counter.high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * x[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ key.low, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ key.high, static_cast<uint32_t>(product0)};
    key.low += 0x9E3779B9;
    key.high += 0xBB67AE85;
  }
  return x;
}

// The draws of one purpose: `purpose` names it ("init/h.0.ln_1.weight", "data", "sample"), so that
// two purposes with the same seed share no numbers.
//
// Threads: thread-safe; a value without state.
class Rng {
 public:
  Rng(uint64_t seed, absl::string_view purpose);

  // The key, for what draws its blocks itself, as kernels of a device do.
  PhiloxKey key() const { return key_; }

  // Word number `index` of `step`.
  uint32_t Word(uint64_t step, uint64_t index) const;
  // Uniform in (0, 1), never 0 or 1; 32 bits.
  double Uniform(uint64_t step, uint64_t index) const;
  // Uniform in [0, bound). bound > 0. The bias is below bound / 2^64.
  uint64_t Below(uint64_t bound, uint64_t step, uint64_t index) const;
  // Normal with mean 0 and deviation 1.
  double Normal(uint64_t step, uint64_t index) const;
  // Those of index first, first + 1, …: the same numbers, four for the price of one.
  void FillNormal(uint64_t step, uint64_t first, absl::Span<double> out) const;

 private:
  PhiloxKey key_;
};

// The quantile of the standard normal distribution for p in [2^-33, 1 - 2^-33], to about 1e-15
// relative.
//
// Source: Wichura, "Algorithm AS 241", Applied Statistics 37, 1988 (PPND16; the far tail is not
// needed)
double NormalQuantile(double p);

}  // namespace muster
