// Numbers to compute with, and ways to compare them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "muster/rng.h"
#include "worker_runtime/kernels/isa.h"

namespace muster::testing {

// Sizes around a pack and a block, with tails of every kind.
inline const std::vector<int64_t>& OddSizes() {
  static const std::vector<int64_t> sizes = {1, 3, 15, 16, 17, 64, 257};
  return sizes;
}

template <typename T>
std::vector<T> RandomNumbers(int64_t count, absl::string_view purpose, double deviation = 1) {
  const Rng rng(7, purpose);
  std::vector<T> numbers(count);
  // Through float, so that both types start from the same values.
  for (int64_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<float>(deviation * rng.Normal(0, i));
  }
  return numbers;
}

inline std::vector<int32_t> RandomTokens(int64_t count, int64_t vocabulary,
                                         absl::string_view purpose = "tokens") {
  const Rng rng(7, purpose);
  std::vector<int32_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(rng.Below(vocabulary, 0, i));
  return tokens;
}

// The largest |a - b|, relative to the largest |b| (at least 1e-30).
template <typename A, typename B>
double RelativeError(const A& actual, const B& expected) {
  double error = actual.size() == expected.size() ? 0 : INFINITY;
  double scale = 1e-30;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    const double difference = std::fabs(double(actual[i]) - double(expected[i]));
    error = std::isnan(difference) ? INFINITY : std::max(error, difference);
    scale = std::max(scale, std::fabs(double(expected[i])));
  }
  return error / scale;
}

template <typename A, typename B>
bool SameBits(const A& a, const B& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
}

inline std::vector<kernels::Isa> SupportedIsas() {
  std::vector<kernels::Isa> isas;
  for (const auto isa : {kernels::Isa::kBaseline, kernels::Isa::kAvx2, kernels::Isa::kAvx512}) {
    if (kernels::IsSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

}  // namespace muster::testing
