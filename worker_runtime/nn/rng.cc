// Numbers that depend on (seed, stream, index) alone, never on who draws them or when.
#include "muster/rng.h"

#include <algorithm>
#include <cmath>

namespace muster {
namespace {

// FNV-1a, and a finalizer that spreads its bits (Stafford's variant 13 of MurmurHash3's).
uint64_t Hash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

// The natural logarithm for 0 < x <= 1 by correctly rounded operations only, so that it has the
// same bits on every machine: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) /
// (m + 1)).
double PortableLog(double x) {
  constexpr double kLn2 = 0.69314718055994530942;
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752440) {
    m *= 2;
    --exponent;
  }
  const double z = (m - 1) / (m + 1);  // |z| <= 0.1716, so 11 terms reach 1e-17
  const double z2 = z * z;
  double series = 0;
  for (int k = 21; k >= 1; k -= 2) series = series * z2 + 1.0 / k;
  return exponent * kLn2 + 2 * z * series;
}

double Horner(const double (&coefficients)[8], double x) {
  double sum = coefficients[7];
  for (int i = 6; i >= 0; --i) sum = sum * x + coefficients[i];
  return sum;
}

constexpr double kCentralNumerator[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                         1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                         4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                         3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr double kCentralDenominator[8] = {1.0,
                                           4.2313330701600911252e+1,
                                           6.8718700749205790830e+2,
                                           5.3941960214247511077e+3,
                                           2.1213794301586595867e+4,
                                           3.9307895800092710610e+4,
                                           2.8729085735721942674e+4,
                                           5.2264952788528545610e+3};
constexpr double kTailNumerator[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                      5.76949722146069140550e0,  3.64784832476320460504e0,
                                      1.27045825245236838258e0,  2.41780725177450611770e-1,
                                      2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double kTailDenominator[8] = {1.0,
                                        2.05319162663775882187e0,
                                        1.67638483018380384940e0,
                                        6.89767334985100004550e-1,
                                        1.48103976427480074590e-1,
                                        1.51986665636164571966e-2,
                                        5.47593808499534494600e-4,
                                        1.05075007164441684324e-9};

bool IsCentral(double q) { return std::fabs(q) <= 0.425; }

// The quantile of 0.5 + q.
double CentralQuantile(double q) {
  const double r = 0.180625 - q * q;
  return q * Horner(kCentralNumerator, r) / Horner(kCentralDenominator, r);
}

}  // namespace

double NormalQuantile(double p) {
  const double q = p - 0.5;
  if (IsCentral(q)) return CentralQuantile(q);
  const double r = std::sqrt(-PortableLog(q < 0 ? p : 1 - p)) - 1.6;
  const double value = Horner(kTailNumerator, r) / Horner(kTailDenominator, r);
  return q < 0 ? -value : value;
}

Rng::Rng(uint64_t seed, absl::string_view purpose) {
  const uint64_t hash = Hash(purpose);
  const PhiloxWords words = PhiloxBlock(
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, {.low = hash, .high = 0});
  key_ = {words[0], words[1]};
}

uint32_t Rng::Word(uint64_t step, uint64_t index) const {
  return PhiloxBlock(key_, {.low = index / 4, .high = step})[index % 4];
}

double Rng::Uniform(uint64_t step, uint64_t index) const {
  return (Word(step, index) + 0.5) * 0x1p-32;
}

uint64_t Rng::Below(uint64_t bound, uint64_t step, uint64_t index) const {
  const PhiloxWords words = PhiloxBlock(key_, {.low = index, .high = step});
  const uint64_t word = (uint64_t{words[1]} << 32) | words[0];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(word) * bound) >> 64);
}

void Rng::FillNormal(uint64_t step, uint64_t first, absl::Span<double> out) const {
  constexpr size_t kAtOnce = 64;
  double uniform[kAtOnce];
  PhiloxWords words = {};
  for (size_t begin = 0; begin < out.size(); begin += kAtOnce) {
    const size_t count = std::min(kAtOnce, out.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t index = first + begin + i;
      if (i == 0 || index % 4 == 0) words = PhiloxBlock(key_, {.low = index / 4, .high = step});
      uniform[i] = (words[index % 4] + 0.5) * 0x1p-32;
    }
    // All of them without a branch, which is vectorised; then the few in the tails once more.
    for (size_t i = 0; i < count; ++i) out[begin + i] = CentralQuantile(uniform[i] - 0.5);
    for (size_t i = 0; i < count; ++i) {
      if (!IsCentral(uniform[i] - 0.5)) out[begin + i] = NormalQuantile(uniform[i]);
    }
  }
}

double Rng::Normal(uint64_t step, uint64_t index) const {
  return NormalQuantile(Uniform(step, index));
}

}  // namespace muster
