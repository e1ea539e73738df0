// Kernels that treat every element alone: GELU, SwiGLU, sums, AdamW, casts; and the blocked norm.
#include <gtest/gtest.h>

#include <limits>

#include "muster/sixteen_bits.h"
#include "muster/sum_tree.h"
#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/kernels/adamw.h"
#include "worker_runtime/kernels/cast.h"
#include "worker_runtime/kernels/elementwise.h"
#include "worker_runtime/kernels/gelu.h"
#include "worker_runtime/kernels/sum_of_squares.h"
#include "worker_runtime/kernels/swiglu.h"

namespace muster::kernels {
namespace {

using ::muster::testing::OddSizes;
using ::muster::testing::RandomNumbers;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;
using ::muster::testing::SupportedIsas;

double GeluOf(double x) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(u));
}

TEST(Gelu, EqualsItsFormulaInDouble) {
  const auto x = RandomNumbers<double>(1000, "x", 3);
  std::vector<double> y(x.size()), expected(x.size());
  Gelu<double>().forward(x.data(), y.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) expected[i] = GeluOf(x[i]);
  EXPECT_LT(RelativeError(y, expected), 1e-15);
}

TEST(Gelu, KeepsItsDigitsInFloatWhereTheResultIsTiny) {
  for (const float x : {-9.0f, -5.0f, -3.0f, -1.0f, -0.01f, 1e-20f, 0.5f, 2.0f, 20.0f}) {
    float y = 0;
    double expected = 0;
    const double wide = x;
    Gelu<float>().forward(&x, &y, 1);
    Gelu<double>().forward(&wide, &expected, 1);
    // A few units in the last place, plus what the float argument of exp loses.
    EXPECT_NEAR(y / expected, 1, 3e-6) << x;
  }
}

TEST(Gelu, SaturatesAndPassesNotANumber) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {1e30f, -1e10f, NAN, kInf, 0.0f};
  std::vector<float> y(x.size());
  Gelu<float>().forward(x.data(), y.data(), x.size());
  EXPECT_EQ(y[0], 1e30f);
  EXPECT_NEAR(y[1], 0, 1e-20);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], kInf);
  EXPECT_EQ(y[4], 0);
}

TEST(Gelu, BackwardEqualsTheSlopeOfForward) {
  const auto x = RandomNumbers<double>(200, "x", 2);
  const auto dy = RandomNumbers<double>(200, "dy");
  std::vector<double> dx(x.size()), expected(x.size());
  Gelu<double>().backward(x.data(), dy.data(), dx.data(), x.size());
  constexpr double kStep = 1e-6;
  for (size_t i = 0; i < x.size(); ++i) {
    expected[i] = dy[i] * (GeluOf(x[i] + kStep) - GeluOf(x[i] - kStep)) / (2 * kStep);
  }
  EXPECT_LT(RelativeError(dx, expected), 1e-8);
}

TEST(Gelu, FloatEqualsDoubleForOddSizes) {
  for (const int64_t n : OddSizes()) {
    const auto x = RandomNumbers<float>(n, "x", 3);
    const auto dy = RandomNumbers<float>(n, "dy");
    const std::vector<double> wide_x(x.begin(), x.end()), wide_dy(dy.begin(), dy.end());
    std::vector<float> y(n), dx(n);
    std::vector<double> wide_y(n), wide_dx(n);
    Gelu<float>().forward(x.data(), y.data(), n);
    Gelu<float>().backward(x.data(), dy.data(), dx.data(), n);
    Gelu<double>().forward(wide_x.data(), wide_y.data(), n);
    Gelu<double>().backward(wide_x.data(), wide_dy.data(), wide_dx.data(), n);
    EXPECT_LT(RelativeError(y, wide_y), 4e-7) << n;
    EXPECT_LT(RelativeError(dx, wide_dx), 1e-6) << n;
  }
}

TEST(Gelu, AnElementHasTheSameBitsWhereverItStands) {
  const auto x = RandomNumbers<float>(53, "x", 3);
  std::vector<float> together(x.size()), alone(x.size());
  Gelu<float>().forward(x.data(), together.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) Gelu<float>().forward(&x[i], &alone[i], 1);
  EXPECT_TRUE(SameBits(together, alone));
}

TEST(Gelu, HasTheSameBitsUnderEveryInstructionSet) {
  const auto x = RandomNumbers<float>(157, "x", 3);
  const auto dy = RandomNumbers<float>(157, "dy");
  std::vector<float> expected(x.size()), actual(x.size());
  MakeGelu<Isa::kBaseline, float>().backward(x.data(), dy.data(), expected.data(), x.size());
  for (const Isa isa : SupportedIsas()) {
    ForIsa(isa, [](auto set) {
      return MakeGelu<set(), float>();
    }).backward(x.data(), dy.data(), actual.data(), x.size());
    EXPECT_TRUE(SameBits(actual, expected)) << ToString(isa);
  }
}

double SiluOf(double x) { return x / (1 + std::exp(-x)); }

TEST(SwiGlu, EqualsItsFormulaAndItsGradientsTheSlopesInPlace) {
  constexpr RowShape kShape = {.rows = 3, .width = 21};
  constexpr int64_t kCount = kShape.rows * kShape.width;
  const auto x = RandomNumbers<double>(2 * kCount, "x", 3);
  const auto dy = RandomNumbers<double>(kCount, "dy");
  std::vector<double> y(kCount), gradients = x, expected(kCount), slopes(2 * kCount);
  SwiGlu<double>().forward(kShape, x.data(), y.data());
  SwiGlu<double>().backward(kShape, gradients.data(), dy.data(), gradients.data());
  constexpr double kStep = 1e-6;
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t gate = i / kShape.width * 2 * kShape.width + i % kShape.width;
    const int64_t up = gate + kShape.width;
    expected[i] = SiluOf(x[gate]) * x[up];
    slopes[gate] =
        dy[i] * x[up] * (SiluOf(x[gate] + kStep) - SiluOf(x[gate] - kStep)) / (2 * kStep);
    slopes[up] = dy[i] * SiluOf(x[gate]);
  }
  EXPECT_LT(RelativeError(y, expected), 1e-15);
  EXPECT_LT(RelativeError(gradients, slopes), 1e-8);
}

TEST(SwiGlu, InFloatEqualsThatInDoubleForOddSizesAndLargeGates) {
  for (const int64_t width : OddSizes()) {
    const RowShape shape = {.rows = 3, .width = width};
    for (const double deviation : {3, 300}) {
      const auto x = RandomNumbers<float>(6 * width, "x", deviation);
      const auto dy = RandomNumbers<float>(3 * width, "dy");
      const std::vector<double> wide_x(x.begin(), x.end()), wide_dy(dy.begin(), dy.end());
      std::vector<float> y(3 * width), dx(6 * width);
      std::vector<double> wide_y(3 * width), wide_dx(6 * width);
      SwiGlu<float>().forward(shape, x.data(), y.data());
      SwiGlu<float>().backward(shape, x.data(), dy.data(), dx.data());
      SwiGlu<double>().forward(shape, wide_x.data(), wide_y.data());
      SwiGlu<double>().backward(shape, wide_x.data(), wide_dy.data(), wide_dx.data());
      EXPECT_LT(RelativeError(y, wide_y), 4e-7) << width;
      EXPECT_LT(RelativeError(dx, wide_dx), 1e-6) << width;
    }
  }
}

TEST(SwiGlu, HasTheSameBitsUnderEveryInstructionSet) {
  constexpr RowShape kShape = {.rows = 2, .width = 83};
  const auto x = RandomNumbers<float>(4 * 83, "x", 3);
  const auto dy = RandomNumbers<float>(2 * 83, "dy");
  const auto run = [&](const SwiGluKernels<float>& kernels) {
    std::vector<float> results(6 * 83);
    kernels.forward(kShape, x.data(), results.data());
    kernels.backward(kShape, x.data(), dy.data(), results.data() + 2 * 83);
    return results;
  };
  const auto expected = run(MakeSwiGlu<Isa::kBaseline, float>());
  for (const Isa isa : SupportedIsas()) {
    const auto kernels = ForIsa(isa, [](auto set) { return MakeSwiGlu<set(), float>(); });
    EXPECT_TRUE(SameBits(run(kernels), expected)) << ToString(isa);
  }
}

TEST(Elementwise, AddsAndScalesInPlaceForOddSizes) {
  for (const int64_t n : OddSizes()) {
    const auto a = RandomNumbers<float>(n, "a");
    auto b = RandomNumbers<float>(n, "b");
    std::vector<float> expected(n);
    for (int64_t i = 0; i < n; ++i) expected[i] = 3.0f * (a[i] + b[i]);
    Elementwise<float>().add(a.data(), b.data(), b.data(), n);
    Elementwise<float>().scale(3.0f, b.data(), b.data(), n);
    EXPECT_TRUE(SameBits(b, expected)) << n;
  }
}

TEST(AdamW, FollowsTheFormulaOverSeveralSteps) {
  constexpr int64_t kCount = 37;
  auto p = RandomNumbers<double>(kCount, "p");
  std::vector<double> m(kCount), v(kCount);
  auto expected = p;
  std::vector<double> em(kCount), ev(kCount);
  for (int step = 1; step <= 5; ++step) {
    const auto g = RandomNumbers<double>(kCount, absl::StrCat("g", step));
    AdamW<double>().update({.learning_rate = 0.01,
                            .beta2 = 0.95,
                            .weight_decay = 0.1,
                            .gradient_scale = 0.5,
                            .step = step},
                           g.data(), {p.data(), m.data(), v.data()}, kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      const double gi = 0.5 * g[i];
      em[i] = 0.9 * em[i] + 0.1 * gi;
      ev[i] = 0.95 * ev[i] + 0.05 * gi * gi;
      const double mean = em[i] / (1 - std::pow(0.9, step));
      const double variance = ev[i] / (1 - std::pow(0.95, step));
      expected[i] -= 0.01 * 0.1 * expected[i] + 0.01 * mean / (std::sqrt(variance) + 1e-8);
    }
  }
  EXPECT_LT(RelativeError(p, expected), 1e-14);
}

TEST(AdamW, HasTheSameBitsUnderEveryInstructionSetAndInPieces) {
  constexpr int64_t kCount = 101;
  const auto g = RandomNumbers<float>(kCount, "g");
  const auto run = [&](const AdamWKernels<float>& kernels, int64_t piece) {
    auto p = RandomNumbers<float>(kCount, "p");
    std::vector<float> m(kCount), v(kCount);
    for (int64_t first = 0; first < kCount; first += piece) {
      kernels.update({.step = 1}, g.data() + first, {&p[first], &m[first], &v[first]},
                     std::min(piece, kCount - first));
    }
    return p;
  };
  const auto expected = run(MakeAdamW<Isa::kBaseline, float>(), kCount);
  for (const Isa isa : SupportedIsas()) {
    const auto kernels = ForIsa(isa, [](auto set) { return MakeAdamW<set(), float>(); });
    EXPECT_TRUE(SameBits(run(kernels, kCount), expected)) << ToString(isa);
    EXPECT_TRUE(SameBits(run(kernels, 7), expected)) << ToString(isa);
  }
}

TEST(Cast, RoundsToTheNearestBf16AndTiesToEven) {
  const std::vector<float> x = {1.0f,     1.00390625f, 1.01171875f, 3.4e38f, -0.0f,
                                1.0e-40f, NAN,         INFINITY,    -2.5f,   0x1.00ffp0f};
  std::vector<uint16_t> y(x.size());
  Cast().f32_to_bf16(x.data(), y.data(), x.size());
  EXPECT_EQ(y[0], 0x3f80);
  EXPECT_EQ(y[1], 0x3f80);  // halfway between 0x3f80 and 0x3f81
  EXPECT_EQ(y[2], 0x3f82);  // halfway between 0x3f81 and 0x3f82
  EXPECT_EQ(y[3], 0x7f80);
  EXPECT_EQ(y[4], 0x8000);
  EXPECT_EQ(y[5], 0x0001);
  EXPECT_EQ(y[6] & 0x7fc0, 0x7fc0);
  EXPECT_EQ(y[7], 0x7f80);
  EXPECT_EQ(y[8], 0xc020);
  EXPECT_EQ(y[9], 0x3f80);
}

TEST(Cast, IsTheSameAsOneByOneForEveryF16AndWhatLiesBetween) {
  std::vector<uint16_t> all(65536), again(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  Cast().f16_to_f32(all.data(), wide.data(), all.size());
  Cast().f32_to_f16(wide.data(), again.data(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(wide[i])) continue;
    ASSERT_EQ(all[i], again[i]);
    ASSERT_EQ(wide[i], FromF16(all[i]));
  }
  EXPECT_EQ(wide[0x3c00], 1.0f);
  EXPECT_EQ(wide[0x0001], 0x1p-24f);
  EXPECT_EQ(wide[0x7bff], 65504.0f);
  EXPECT_TRUE(std::isnan(wide[0x7e00]));
  std::vector<float> x = {65519.9f, 65520.0f, 1e30f, -INFINITY, NAN, 0x1p-25f, 0x1.8p-25f, -0.0f};
  for (const float random : RandomNumbers<float>(5000, "x", 1)) {
    x.push_back(random * 0x1p-12f);
    x.push_back(random * 100);
  }
  std::vector<uint16_t> y(x.size());
  Cast().f32_to_f16(x.data(), y.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], ToF16(x[i])) << x[i];
  EXPECT_EQ(y[0], 0x7bff);
  EXPECT_EQ(y[1], 0x7c00);
  EXPECT_EQ(y[5], 0x0000);
  EXPECT_EQ(y[6], 0x0001);
}

TEST(Cast, GivesBackEveryBf16) {
  std::vector<uint16_t> all(65536), again(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  Cast().bf16_to_f32(all.data(), wide.data(), all.size());
  Cast().f32_to_bf16(wide.data(), again.data(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(wide[i])) continue;
    ASSERT_EQ(all[i], again[i]);
  }
}

TEST(SumOfSquares, EqualsTheSumInDouble) {
  for (const int64_t n :
       {int64_t{1}, int64_t{17}, kNormBlock, kNormBlock + 3, 5 * kNormBlock - 1}) {
    const auto x = RandomNumbers<float>(n, "x");
    std::vector<double> partials(NumNormBlocks(n));
    SumOfSquares<float>().blocks(x.data(), n, partials.data());
    double expected = 0;
    for (const float xi : x) expected += double(xi) * xi;
    EXPECT_NEAR(TreeSum(partials) / expected, 1, 1e-6) << n;
  }
}

TEST(SumOfSquares, HasTheSameBitsHoweverWholeBlocksAreSpread) {
  constexpr int64_t kBlocks = 7;
  const auto x = RandomNumbers<float>(kBlocks * kNormBlock - 5, "x");
  std::vector<double> together(kBlocks), apart(kBlocks);
  SumOfSquares<float>().blocks(x.data(), x.size(), together.data());
  for (int64_t b = 0; b < kBlocks; ++b) {
    const int64_t first = b * kNormBlock;
    SumOfSquares<float>().blocks(x.data() + first, std::min<int64_t>(kNormBlock, x.size() - first),
                                 &apart[b]);
  }
  EXPECT_TRUE(SameBits(together, apart));
}

}  // namespace
}  // namespace muster::kernels
