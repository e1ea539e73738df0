// Numbers for kernels of a CUDA device, in either type, and how near theirs must come to the
// host's.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "muster/sixteen_bits.h"
#include "tests/support/kernel_memory.h"
#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/kernels/cast.h"
#include "worker_runtime/kernels/half.h"

namespace muster::testing {

// Each result is looked at under so many orders of blocks and threads.
inline constexpr uint64_t kKernelSchedules = 3;

// Rounded to T, uint16_t (bf16) or Half.
template <typename T>
std::vector<T> Narrowed(const std::vector<float>& numbers) {
  std::vector<T> narrow(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if constexpr (std::is_same_v<T, kernels::Half>) {
      narrow[i] = {ToF16(numbers[i])};
    } else {
      narrow[i] = ToBf16(numbers[i]);
    }
  }
  return narrow;
}

template <typename T>
std::vector<T> KernelNumbers(int64_t count, absl::string_view purpose, double deviation = 1) {
  const auto numbers = RandomNumbers<float>(count, purpose, deviation);
  if constexpr (std::is_same_v<T, float>) {
    return numbers;
  } else {
    return Narrowed<T>(numbers);
  }
}

inline std::vector<float> Widened(const std::vector<float>& numbers) { return numbers; }
inline std::vector<float> Widened(const std::vector<uint16_t>& numbers) {
  std::vector<float> wide(numbers.size());
  kernels::Cast().bf16_to_f32(numbers.data(), wide.data(), static_cast<int64_t>(numbers.size()));
  return wide;
}
inline std::vector<float> Widened(const std::vector<kernels::Half>& numbers) {
  std::vector<float> wide;
  for (const kernels::Half number : numbers) wide.push_back(FromF16(number.bits));
  return wide;
}

// Relative to the largest result: what float keeps after sums of some hundred terms; a bf16 has 8
// bits, and sums of such numbers are rounded once.
template <typename T>
constexpr double kKernelTolerance = std::is_same_v<T, float> ? 3e-6 : 4.5e-3;

using KernelTypes = ::testing::Types<float, uint16_t, kernels::Half>;
struct KernelTypeNames {
  template <typename T>
  static std::string GetName(int) {
    if (std::is_same_v<T, kernels::Half>) return "f16";
    return std::is_same_v<T, float> ? "f32" : "bf16";
  }
};

// A test whose kernels run where there is something to run them.
template <typename T>
class KernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyKernelsCannotRun();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

// Calls `run` for every schedule.
template <typename Run>
void ForEverySchedule(Run run) {
  for (uint64_t schedule = 1; schedule <= kKernelSchedules; ++schedule) {
    SetKernelSchedule(schedule);
    SCOPED_TRACE(absl::StrCat("schedule ", schedule));
    run();
  }
}

}  // namespace muster::testing
