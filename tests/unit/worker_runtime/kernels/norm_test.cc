// Norms of whole rows and of the heads within lines.
#include "worker_runtime/kernels/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/unit/worker_runtime/nn/finite_difference.h"
#include "tests/unit/worker_runtime/numbers.h"

namespace muster::kernels {
namespace {

using ::muster::testing::ExpectSlopes;
using ::muster::testing::OddSizes;
using ::muster::testing::RandomNumbers;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;
using ::muster::testing::SupportedIsas;

constexpr double kEpsilon = 1e-5;

int64_t NumElements(const NormShape& shape) { return shape.rows / shape.per_line * shape.line; }

template <typename T>
struct NormRun {
  explicit NormRun(const NormShape& shape)
      : y(NumElements(shape)),
        mean(shape.rows),
        rstd(shape.rows),
        dx(NumElements(shape)),
        dgamma(shape.width),
        dbeta(shape.width) {}
  typename NormKernels<T>::Saved saved() { return {mean.data(), rstd.data()}; }

  std::vector<T> y, mean, rstd, dx, dgamma, dbeta;
};

template <typename T>
NormRun<T> RunNorm(const NormKernels<T>& kernels, NormShape shape, int64_t first_row = 0) {
  const int64_t first = first_row * shape.width, n = first + NumElements(shape);
  const auto x = RandomNumbers<T>(n, "x");
  const auto dy = RandomNumbers<T>(n, "dy");
  const auto gamma = RandomNumbers<T>(shape.width, "gamma");
  const auto beta = RandomNumbers<T>(shape.width, "beta");
  NormRun<T> run(shape);
  kernels.forward(shape, x.data() + first, {gamma.data(), beta.data(), kEpsilon}, run.y.data(),
                  run.saved());
  kernels.input_gradient(shape, x.data() + first, dy.data() + first, gamma.data(), run.saved(),
                         nullptr, run.dx.data());
  kernels.weight_gradient(shape, x.data() + first, dy.data() + first, run.saved(),
                          {run.dgamma.data(), run.dbeta.data(), false});
  return run;
}

class Norms : public ::testing::TestWithParam<NormKind> {
 protected:
  static NormShape Rows(int64_t rows, int64_t width) {
    return {.kind = GetParam(), .rows = rows, .width = width};
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, Norms, ::testing::Values(NormKind::kLayer, NormKind::kRms),
                         [](const auto& kind) {
                           return kind.param == NormKind::kLayer ? "Layer" : "Rms";
                         });

TEST_P(Norms, EqualTheirFormula) {
  const NormShape shape = Rows(5, 37);
  const auto run = RunNorm(Norm<double>(), shape);
  const auto x = RandomNumbers<double>(5 * 37, "x");
  const auto gamma = RandomNumbers<double>(37, "gamma"), beta = RandomNumbers<double>(37, "beta");
  std::vector<double> expected;
  for (int row = 0; row < 5; ++row) {
    double mean = 0, square = 0;
    for (int i = 0; i < 37; ++i) mean += x[row * 37 + i] / 37;
    if (GetParam() == NormKind::kRms) mean = 0;
    for (int i = 0; i < 37; ++i) square += std::pow(x[row * 37 + i] - mean, 2) / 37;
    for (int i = 0; i < 37; ++i) {
      const double xhat = (x[row * 37 + i] - mean) / std::sqrt(square + kEpsilon);
      expected.push_back(xhat * gamma[i] + (GetParam() == NormKind::kRms ? 0 : beta[i]));
    }
  }
  EXPECT_LT(RelativeError(run.y, expected), 1e-14);
}

TEST_P(Norms, HaveTheGradientsOfTheirSlopes) {
  // Heads of five within lines, and whole rows.
  NormShape heads = Rows(6, 5);
  heads.per_line = 3, heads.line = 23, heads.offset = 4;
  for (const NormShape& shape : {Rows(4, 9), heads}) {
    auto x = RandomNumbers<double>(NumElements(shape), "x");
    auto gamma = RandomNumbers<double>(shape.width, "gamma");
    auto beta = RandomNumbers<double>(shape.width, "beta");
    const auto dy = RandomNumbers<double>(NumElements(shape), "dy");
    const auto value = [&] {
      NormRun<double> run(shape);
      Norm<double>().forward(shape, x.data(), {gamma.data(), beta.data(), kEpsilon}, run.y.data(),
                             run.saved());
      double sum = 0;
      for (size_t i = 0; i < dy.size(); ++i) sum += dy[i] * run.y[i];
      return sum;
    };
    const auto run = RunNorm(Norm<double>(), shape);
    ExpectSlopes(absl::MakeSpan(x), run.dx, value, 1e-7, "x");
    ExpectSlopes(absl::MakeSpan(gamma), run.dgamma, value, 1e-7, "gamma");
    if (GetParam() == NormKind::kRms) {
      EXPECT_EQ(run.dbeta, std::vector<double>(shape.width));
      EXPECT_EQ(run.mean, std::vector<double>(shape.rows));
    } else {
      ExpectSlopes(absl::MakeSpan(beta), run.dbeta, value, 1e-7, "beta");
    }
  }
}

TEST_P(Norms, InFloatEqualThoseInDoubleForOddShapes) {
  for (const int64_t rows : OddSizes()) {
    for (const int64_t width : OddSizes()) {
      const auto narrow = RunNorm(Norm<float>(), Rows(rows, width));
      const auto wide = RunNorm(Norm<double>(), Rows(rows, width));
      const std::string where = absl::StrCat(rows, " x ", width);
      EXPECT_LT(RelativeError(narrow.y, wide.y), 2e-6) << where;
      // Sums over rows grow their error with the square root of their number.
      EXPECT_LT(RelativeError(narrow.dgamma, wide.dgamma), 1e-5) << where;
      EXPECT_LT(RelativeError(narrow.dbeta, wide.dbeta), 1e-5) << where;
      // One or three numbers may lie so close that rstd is large and the gradient cancels.
      if (width > 3) {
        EXPECT_LT(RelativeError(narrow.dx, wide.dx), 4e-6) << where;
      }
    }
  }
}

TEST_P(Norms, OfARowHaveTheSameBitsAloneAndAmongOthers) {
  const auto together = RunNorm(Norm<float>(), Rows(5, 67));
  const auto alone = RunNorm(Norm<float>(), Rows(1, 67), 3);
  EXPECT_TRUE(SameBits(absl::MakeConstSpan(together.y).subspan(3 * 67, 67), alone.y));
  EXPECT_TRUE(SameBits(absl::MakeConstSpan(together.dx).subspan(3 * 67, 67), alone.dx));
}

TEST_P(Norms, HaveTheSameBitsUnderEveryInstructionSet) {
  const auto expected = RunNorm(MakeNorm<Isa::kBaseline, float>(), Rows(37, 83));
  for (const Isa isa : SupportedIsas()) {
    const auto kernels = ForIsa(isa, [](auto set) { return MakeNorm<set(), float>(); });
    const auto actual = RunNorm(kernels, Rows(37, 83));
    EXPECT_TRUE(SameBits(actual.y, expected.y)) << ToString(isa);
    EXPECT_TRUE(SameBits(actual.dx, expected.dx)) << ToString(isa);
    EXPECT_TRUE(SameBits(actual.dgamma, expected.dgamma)) << ToString(isa);
  }
}

TEST_P(Norms, AddTheGradientThatArrivedBefore) {
  const NormShape shape = Rows(3, 21);
  auto run = RunNorm(Norm<double>(), shape);
  const auto x = RandomNumbers<double>(63, "x");
  const auto dy = RandomNumbers<double>(63, "dy");
  const auto gamma = RandomNumbers<double>(21, "gamma");
  auto dx = RandomNumbers<double>(63, "addend");
  std::vector<double> expected = dx;
  for (size_t i = 0; i < dx.size(); ++i) expected[i] += run.dx[i];
  Norm<double>().input_gradient(shape, x.data(), dy.data(), gamma.data(), run.saved(), dx.data(),
                                dx.data());
  EXPECT_LT(RelativeError(dx, expected), 1e-14);
}

TEST_P(Norms, AccumulateWeightGradients) {
  const NormShape shape = Rows(40, 21);
  auto run = RunNorm(Norm<double>(), shape);
  const auto x = RandomNumbers<double>(40 * 21, "x");
  const auto dy = RandomNumbers<double>(40 * 21, "dy");
  auto dgamma = run.dgamma;
  auto dbeta = run.dbeta;
  Norm<double>().weight_gradient(shape, x.data(), dy.data(), run.saved(),
                                 {dgamma.data(), dbeta.data(), true});
  for (int i = 0; i < 21; ++i) {
    EXPECT_NEAR(dgamma[i], 2 * run.dgamma[i], 1e-12);
    EXPECT_NEAR(dbeta[i], 2 * run.dbeta[i], 1e-12);
  }
}

// What lies beside them stays, also where results take the place of what they are made of.
TEST_P(Norms, OfHeadsWithinLinesAreThoseOfTheSameRowsByThemselves) {
  NormShape heads = Rows(2 * 3, 13);
  heads.per_line = 3, heads.line = 50, heads.offset = 7;
  const NormShape rows = Rows(6, 13);
  const auto pick = [&](const std::vector<float>& lines) {
    std::vector<float> picked;
    for (int64_t row = 0; row < 6; ++row) {
      const int64_t begin = row / 3 * 50 + 7 + row % 3 * 13;
      picked.insert(picked.end(), lines.begin() + begin, lines.begin() + begin + 13);
    }
    return picked;
  };
  auto y = RandomNumbers<float>(100, "x"), dx = RandomNumbers<float>(100, "dy");
  const auto x = y, dy = dx, gamma = RandomNumbers<float>(13, "gamma"),
             beta = RandomNumbers<float>(13, "beta");
  const auto picked_x = pick(x), picked_dy = pick(dy);
  NormRun<float> of_lines(heads), expected(rows);
  const auto& kernels = Norm<float>();
  kernels.forward(rows, picked_x.data(), {gamma.data(), beta.data(), kEpsilon}, expected.y.data(),
                  expected.saved());
  kernels.input_gradient(rows, picked_x.data(), picked_dy.data(), gamma.data(), expected.saved(),
                         nullptr, expected.dx.data());
  kernels.weight_gradient(rows, picked_x.data(), picked_dy.data(), expected.saved(),
                          {expected.dgamma.data(), expected.dbeta.data(), false});
  kernels.forward(heads, y.data(), {gamma.data(), beta.data(), kEpsilon}, y.data(),
                  of_lines.saved());
  kernels.weight_gradient(heads, x.data(), dx.data(), of_lines.saved(),
                          {of_lines.dgamma.data(), of_lines.dbeta.data(), false});
  kernels.input_gradient(heads, x.data(), dx.data(), gamma.data(), of_lines.saved(), nullptr,
                         dx.data());
  EXPECT_TRUE(SameBits(pick(y), expected.y));
  EXPECT_TRUE(SameBits(pick(dx), expected.dx));
  EXPECT_TRUE(SameBits(of_lines.rstd, expected.rstd));
  EXPECT_TRUE(SameBits(of_lines.dgamma, expected.dgamma));
  EXPECT_TRUE(SameBits(of_lines.dbeta, expected.dbeta));
  for (int i = 0; i < 100; ++i) {
    if (i % 50 >= 7 && i % 50 < 7 + 3 * 13) continue;
    EXPECT_EQ(y[i], x[i]);
    EXPECT_EQ(dx[i], dy[i]);
  }
}

}  // namespace
}  // namespace muster::kernels
