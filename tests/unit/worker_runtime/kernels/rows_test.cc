// Kernels that work row by row. Sources: worker_runtime/kernels/bias.h,
// worker_runtime/kernels/cross_entropy.h, worker_runtime/kernels/embedding.h.
#include <gtest/gtest.h>

#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/kernels/bias.h"
#include "worker_runtime/kernels/cross_entropy.h"
#include "worker_runtime/kernels/embedding.h"

namespace muster::kernels {
namespace {

using ::muster::testing::OddSizes;
using ::muster::testing::RandomNumbers;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;
using ::muster::testing::SupportedIsas;

TEST(Bias, FillsRowsWithBiasAndResidual) {
  const auto bias = RandomNumbers<float>(19, "bias");
  const auto residual = RandomNumbers<float>(3 * 19, "residual");
  std::vector<float> y(3 * 19), plain(3 * 19);
  Bias<float>().fill({3, 19}, bias.data(), residual.data(), y.data());
  Bias<float>().fill({3, 19}, bias.data(), nullptr, plain.data());
  for (int i = 0; i < 3 * 19; ++i) {
    EXPECT_EQ(y[i], residual[i] + bias[i % 19]);
    EXPECT_EQ(plain[i], bias[i % 19]);
  }
}

TEST(Bias, GradientIsTheSumOfRowsForOddShapes) {
  for (const int64_t rows : OddSizes()) {
    for (const int64_t width : OddSizes()) {
      const auto dy = RandomNumbers<float>(rows * width, "dy");
      std::vector<float> dbias(width, 5.0f);
      std::vector<double> expected(width);
      for (int64_t i = 0; i < rows * width; ++i) expected[i % width] += dy[i];
      Bias<float>().gradient({rows, width}, dy.data(), dbias.data(), false);
      EXPECT_LT(RelativeError(dbias, expected), 1e-5) << rows << " x " << width;
      Bias<float>().gradient({rows, width}, dy.data(), dbias.data(), true);
      for (double& e : expected) e *= 2;
      EXPECT_LT(RelativeError(dbias, expected), 1e-5) << rows << " x " << width;
    }
  }
}

TEST(Embedding, AddsTokenAndPositionRows) {
  const EmbeddingShape shape = {.batch = 2, .sequence = 3, .width = 5, .first_position = 1};
  const std::vector<int32_t> tokens = {0, 2, 2, 1, 0, 3};
  const auto table = RandomNumbers<float>(4 * 5, "table");
  const auto positions = RandomNumbers<float>(4 * 5, "positions");
  std::vector<float> y(6 * 5), alone(6 * 5);
  Embedding<float>().forward(shape, tokens.data(), table.data(), positions.data(), y.data());
  Embedding<float>().forward(shape, tokens.data(), table.data(), nullptr, alone.data());
  for (int row = 0; row < 6; ++row) {
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(y[row * 5 + i], table[tokens[row] * 5 + i] + positions[(1 + row % 3) * 5 + i]);
      EXPECT_EQ(alone[row * 5 + i], table[tokens[row] * 5 + i]);
    }
  }
}

TEST(Embedding, GradientsAddEachRowToItsTokenAndItsPosition) {
  const EmbeddingShape shape = {.batch = 2, .sequence = 3, .width = 5};
  const std::vector<int32_t> tokens = {0, 2, 2, 1, 0, 3};
  const auto dy = RandomNumbers<double>(6 * 5, "dy");
  std::vector<double> dtoken(4 * 5), dposition(3 * 5), token(4 * 5), position(3 * 5);
  Embedding<double>().token_gradient(shape, tokens.data(), dy.data(), dtoken.data());
  Embedding<double>().position_gradient(shape, dy.data(), dposition.data());
  for (int i = 0; i < 6 * 5; ++i) {
    token[tokens[i / 5] * 5 + i % 5] += dy[i];
    position[i / 5 % 3 * 5 + i % 5] += dy[i];
  }
  EXPECT_TRUE(SameBits(dtoken, token));
  EXPECT_TRUE(SameBits(dposition, position));
}

template <typename T>
std::pair<CrossEntropySum, std::vector<T>> RunCrossEntropy(const CrossEntropyKernels<T>& kernels,
                                                           int64_t rows, int64_t width) {
  const auto logits = RandomNumbers<T>(rows * width, "logits", 4);
  auto targets = ::muster::testing::RandomTokens(rows, width);
  if (rows > 2) targets[1] = kIgnoredTarget;
  std::vector<T> dlogits(rows * width);
  const auto sum = kernels.run({rows, width}, logits.data(), targets.data(), dlogits.data());
  return {sum, dlogits};
}

TEST(CrossEntropy, EqualsItsDefinition) {
  const std::vector<double> logits = {1, 2, 3, -1, 0.5, 0};
  const std::vector<int32_t> targets = {2, 0};
  std::vector<double> dlogits(6);
  const auto sum =
      CrossEntropy<double>().run({2, 3}, logits.data(), targets.data(), dlogits.data());
  double expected = 0;
  for (int row = 0; row < 2; ++row) {
    double total = 0;
    for (int i = 0; i < 3; ++i) total += std::exp(logits[row * 3 + i]);
    expected += std::log(total) - logits[row * 3 + targets[row]];
    for (int i = 0; i < 3; ++i) {
      const double p = std::exp(logits[row * 3 + i]) / total;
      EXPECT_NEAR(dlogits[row * 3 + i], p - (i == targets[row]), 1e-15);
    }
  }
  EXPECT_NEAR(sum.loss, expected, 1e-14);
  EXPECT_EQ(sum.num_tokens, 2);
}

TEST(CrossEntropy, LeavesOutIgnoredTargets) {
  const auto [sum, dlogits] = RunCrossEntropy(CrossEntropy<float>(), 3, 17);
  EXPECT_EQ(sum.num_tokens, 2);
  for (int i = 17; i < 34; ++i) EXPECT_EQ(dlogits[i], 0);
}

TEST(CrossEntropy, FloatEqualsDoubleForOddShapes) {
  for (const int64_t rows : OddSizes()) {
    for (const int64_t width : OddSizes()) {
      const auto [narrow, dnarrow] = RunCrossEntropy(CrossEntropy<float>(), rows, width);
      const auto [wide, dwide] = RunCrossEntropy(CrossEntropy<double>(), rows, width);
      EXPECT_NEAR(narrow.loss, wide.loss, 2e-6 * (1 + wide.loss)) << rows << " x " << width;
      EXPECT_LT(RelativeError(dnarrow, dwide), 1e-6 + (width == 1)) << rows << " x " << width;
    }
  }
}

TEST(CrossEntropy, SurvivesHugeLogits) {
  const std::vector<float> logits = {3e4f, -3e4f, 0};
  const int32_t target = 1;
  std::vector<float> dlogits(3);
  const auto sum = CrossEntropy<float>().run({1, 3}, logits.data(), &target, dlogits.data());
  EXPECT_EQ(sum.loss, 6e4);
  EXPECT_EQ(dlogits, (std::vector<float>{1, -1, 0}));
}

TEST(CrossEntropy, HasTheSameBitsUnderEveryInstructionSet) {
  const auto expected = RunCrossEntropy(MakeCrossEntropy<Isa::kBaseline, float>(), 5, 83);
  for (const Isa isa : SupportedIsas()) {
    const auto actual = RunCrossEntropy(
        ForIsa(isa, [](auto set) { return MakeCrossEntropy<set(), float>(); }), 5, 83);
    EXPECT_EQ(actual.first.loss, expected.first.loss) << ToString(isa);
    EXPECT_TRUE(SameBits(actual.second, expected.second)) << ToString(isa);
  }
}

}  // namespace
}  // namespace muster::kernels
