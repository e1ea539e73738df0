#include "worker_runtime/comm/reduce_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace muster::comm {
namespace {

using ::testing::ElementsAre;

uint16_t Narrowed(DType dtype, float value) {
  uint16_t bits = 0;
  Narrow(dtype, &bits, &value, 1);
  return bits;
}

float Widened(DType dtype, uint16_t bits) {
  float value = 0;
  Widen(dtype, &value, &bits, 1);
  return value;
}

// The value of f16 bits by its definition.
double F16ByDefinition(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

TEST(ReduceKernels, EveryFiniteF16HasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;
    const uint16_t half = static_cast<uint16_t>(bits);
    ASSERT_EQ(Widened(DType::kF16, half), F16ByDefinition(half)) << bits;
    ASSERT_EQ(Narrowed(DType::kF16, Widened(DType::kF16, half)), half) << bits;
  }
}

TEST(ReduceKernels, F16RoundsToNearestTiesToEven) {
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const double low = F16ByDefinition(half), high = F16ByDefinition(half + 1);
    const float middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(Narrowed(DType::kF16, middle), half % 2 == 0 ? half : half + 1) << half;
    ASSERT_EQ(Narrowed(DType::kF16, std::nextafter(middle, 1e9f)), half + 1) << half;
    ASSERT_EQ(Narrowed(DType::kF16, std::nextafter(middle, 0.0f)), half) << half;
  }
}

TEST(ReduceKernels, F16OverflowsToInfinityAndKeepsNan) {
  EXPECT_EQ(Narrowed(DType::kF16, 65519.0f), 0x7bff);
  EXPECT_EQ(Narrowed(DType::kF16, 65520.0f), 0x7c00);
  EXPECT_EQ(Narrowed(DType::kF16, -1e30f), 0xfc00);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(Widened(DType::kF16, Narrowed(DType::kF16, nan))));
  EXPECT_TRUE(std::isinf(Widened(DType::kF16, 0x7c00)));
}

TEST(ReduceKernels, Bf16RoundsToNearestTiesToEvenAndKeepsNan) {
  EXPECT_EQ(Narrowed(DType::kBf16, 1.0f), 0x3f80);
  EXPECT_EQ(Narrowed(DType::kBf16, 1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(Narrowed(DType::kBf16, 1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(Narrowed(DType::kBf16, std::numeric_limits<float>::max()), 0x7f80);
  const float nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(Widened(DType::kBf16, Narrowed(DType::kBf16, nan))));
}

TEST(ReduceKernels, IntegersWrapAround) {
  int32_t a = std::numeric_limits<int32_t>::max();
  const int32_t one = 1;
  Accumulate(DType::kI32, ReduceOp::kSum, &a, &one, 1);
  EXPECT_EQ(a, std::numeric_limits<int32_t>::min());
}

TEST(ReduceKernels, CombineContributionsByTheTree) {
  // ((a+b)+(c+d)) + (e+f) with a value that only that order keeps.
  std::vector<float> roots = {1e8f, 1.0f, -1e8f, 3.0f};
  std::vector<void*> pointers;
  for (float& root : roots) pointers.push_back(&root);
  const std::vector<LeafRange> ranges = {{0, 2}, {2, 3}, {3, 4}, {4, 6}};
  CombineByTree(DType::kF32, ReduceOp::kSum, ranges, pointers, 1);
  EXPECT_EQ(roots[0], (1e8f + (1.0f + -1e8f)) + 3.0f);
}

}  // namespace
}  // namespace muster::comm
