// Kernels that work row by row beside their host twins: embedding, bias, GELU, SwiGLU, the loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "muster/sum_tree.h"
#include "tests/unit/worker_runtime/kernels/kernel_numbers.h"
#include "worker_runtime/kernels/bias.h"
#include "worker_runtime/kernels/cross_entropy.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/embedding.h"
#include "worker_runtime/kernels/gelu.h"
#include "worker_runtime/kernels/swiglu.h"

namespace muster::kernels {
namespace {

using ::muster::testing::ForEverySchedule;
using ::muster::testing::KernelArray;
using ::muster::testing::KernelNumbers;
using ::muster::testing::KernelTest;
using ::muster::testing::KernelTypeNames;
using ::muster::testing::KernelTypes;
using ::muster::testing::kKernelTolerance;
using ::muster::testing::Narrowed;
using ::muster::testing::RandomNumbers;
using ::muster::testing::RandomTokens;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;
using ::muster::testing::Widened;

// Widths with and without whole vectors; rows around a warp's, a block's and a strip's.
const std::vector<RowShape> kShapes = {{1, 8},   {3, 1},    {5, 67},   {9, 264},
                                       {2, 768}, {257, 24}, {300, 37}, {7, 1032}};

template <typename T>
class RowKernels : public KernelTest<T> {
 protected:
  static constexpr double kTolerance = kKernelTolerance<T>;
};
TYPED_TEST_SUITE(RowKernels, KernelTypes, KernelTypeNames);

TYPED_TEST(RowKernels, EmbeddingLooksUpTokensAndPositions) {
  for (const int64_t width : {5, 40, 1040}) {
    const EmbeddingShape shape = {.batch = 2, .sequence = 7, .width = width, .first_position = 3};
    const auto tokens = RandomTokens(14, 9);
    const auto table = KernelNumbers<TypeParam>(9 * width, "table");
    const auto positions = KernelNumbers<TypeParam>(12 * width, "positions");
    std::vector<float> expected(14 * width);
    Embedding<float>().forward(shape, tokens.data(), Widened(table).data(),
                               Widened(positions).data(), expected.data());
    const KernelArray<int32_t> on_tokens(tokens);
    const KernelArray<TypeParam> on_table(table), on_positions(positions);
    const auto y = KernelArray<TypeParam>::Poisoned(expected.size());
    ASSERT_EQ(cuda::EmbeddingForward(nullptr, shape, on_tokens.data(), on_table.data(),
                                     on_positions.data(), y.data()),
              nullptr);
    EXPECT_LE(RelativeError(Widened(y.Read()), expected), this->kTolerance) << width;
    // There may be no positions.
    ASSERT_EQ(cuda::EmbeddingForward<TypeParam>(nullptr, shape, on_tokens.data(), on_table.data(),
                                                nullptr, y.data()),
              nullptr);
    Embedding<float>().forward(shape, tokens.data(), Widened(table).data(), nullptr,
                               expected.data());
    EXPECT_TRUE(SameBits(Widened(y.Read()), expected)) << width;
  }
}

TYPED_TEST(RowKernels, EmbeddingGradientsAddUpInOrderWhateverTheSchedule) {
  // 300 rows go over two chunks and share few tokens.
  for (const int64_t width : {5, 1040}) {
    const EmbeddingShape shape = {.batch = 3, .sequence = width == 5 ? 100 : 6, .width = width};
    const int64_t rows = shape.batch * shape.sequence;
    const auto tokens = RandomTokens(rows, 11);
    const auto dy = KernelNumbers<TypeParam>(rows * width, "dy");
    const auto dtable = KernelNumbers<TypeParam>(11 * width, "dtable");
    const auto dpositions = KernelNumbers<TypeParam>(shape.sequence * width, "dpositions");
    auto expected_table = Widened(dtable);
    auto expected_positions = Widened(dpositions);
    Embedding<float>().token_gradient(shape, tokens.data(), Widened(dy).data(),
                                      expected_table.data());
    Embedding<float>().position_gradient(shape, Widened(dy).data(), expected_positions.data());
    const KernelArray<int32_t> on_tokens(tokens);
    const KernelArray<TypeParam> on_dy(dy);
    ForEverySchedule([&] {
      const KernelArray<TypeParam> on_table(dtable), on_positions(dpositions);
      ASSERT_EQ(cuda::EmbeddingBackward<TypeParam>(nullptr, shape, on_tokens.data(), on_dy.data(),
                                                   {on_table.data(), on_positions.data()}),
                nullptr);
      EXPECT_LE(RelativeError(Widened(on_table.Read()), expected_table), this->kTolerance);
      EXPECT_LE(RelativeError(Widened(on_positions.Read()), expected_positions), this->kTolerance);
      if constexpr (std::is_same_v<TypeParam, float>) {
        EXPECT_TRUE(SameBits(on_table.Read(), expected_table));
        EXPECT_TRUE(SameBits(on_positions.Read(), expected_positions));
      }
    });
  }
}

// More rows of one bucket than are listed at once: a token that is nearly all, one that comes among
// the first and again at the end, and one that comes there alone.
TYPED_TEST(RowKernels, EmbeddingGradientsAreOneSumEachHoweverOftenATokenComes) {
  const EmbeddingShape shape = {.batch = 1, .sequence = 2200, .width = 5};
  const int64_t buckets = (shape.sequence + 31) / 32;  // of 32 rows each
  std::vector<int32_t> tokens(shape.sequence, 0);
  const auto again = static_cast<int32_t>(buckets), late = static_cast<int32_t>(2 * buckets);
  tokens[3] = tokens[2150] = again;
  tokens[2100] = tokens[2199] = late;
  tokens[70] = 1;  // another's
  const auto dy = KernelNumbers<TypeParam>(shape.sequence * shape.width, "dy");
  const auto table = KernelNumbers<TypeParam>((late + 1) * shape.width, "table");
  auto expected = Widened(table);
  Embedding<float>().token_gradient(shape, tokens.data(), Widened(dy).data(), expected.data());
  const KernelArray<int32_t> on_tokens(tokens);
  const KernelArray<TypeParam> on_dy(dy), on_table(table);
  ASSERT_STREQ(cuda::EmbeddingBackward<TypeParam>(nullptr, shape, on_tokens.data(), on_dy.data(),
                                                  {on_table.data(), nullptr}),
               nullptr);
  if constexpr (std::is_same_v<TypeParam, float>) {
    EXPECT_TRUE(SameBits(on_table.Read(), expected));
  } else {
    EXPECT_EQ(Widened(on_table.Read()), Widened(Narrowed<TypeParam>(expected)));
  }
}

TYPED_TEST(RowKernels, BiasFillsRowsAndGetsItsGradient) {
  for (const RowShape shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(shape.rows, " x ", shape.width));
    const size_t n = shape.rows * shape.width;
    const auto bias = KernelNumbers<TypeParam>(shape.width, "bias");
    const auto residual = KernelNumbers<TypeParam>(n, "residual");
    std::vector<float> filled(n);
    auto gradient = Widened(bias);
    Bias<float>().fill(shape, Widened(bias).data(), Widened(residual).data(), filled.data());
    Bias<float>().gradient(shape, Widened(residual).data(), gradient.data(), true);
    const KernelArray<TypeParam> on_bias(bias), on_residual(residual), dbias(bias);
    const auto y = KernelArray<TypeParam>::Poisoned(n);
    const auto zeros = KernelArray<TypeParam>::Poisoned(n);
    const auto scratch = KernelArray<float>::Poisoned(cuda::ColumnScratch(shape));
    ASSERT_EQ(cuda::BiasFill(nullptr, shape, on_bias.data(), on_residual.data(), y.data()),
              nullptr);
    ASSERT_EQ(cuda::BiasFill<TypeParam>(nullptr, shape, nullptr, nullptr, zeros.data()), nullptr);
    ASSERT_EQ(
        cuda::BiasGradient(nullptr, shape, on_residual.data(), dbias.data(), true, scratch.data()),
        nullptr);
    EXPECT_LE(RelativeError(Widened(y.Read()), filled), this->kTolerance);
    EXPECT_EQ(zeros.Read(), std::vector<TypeParam>(n));
    EXPECT_LE(RelativeError(Widened(dbias.Read()), gradient), this->kTolerance);
  }
}

// It is what the sum was before it would be rounded.
TYPED_TEST(RowKernels, TheGradientOfABiasMayBeKeptInFloat) {
  for (const RowShape shape : {RowShape{9, 264}, {300, 37}}) {
    SCOPED_TRACE(absl::StrCat(shape.rows, " x ", shape.width));
    const auto dy = KernelNumbers<TypeParam>(shape.rows * shape.width, "dy");
    auto bias = RandomNumbers<float>(shape.width, "bias");
    const KernelArray<TypeParam> on_dy(dy);
    const KernelArray<float> dbias(bias);
    const auto scratch = KernelArray<float>::Poisoned(cuda::ColumnScratch(shape));
    ASSERT_EQ(cuda::BiasGradient(nullptr, shape, static_cast<const TypeParam*>(on_dy.data()),
                                 dbias.data(), true, scratch.data()),
              nullptr);
    Bias<float>().gradient(shape, Widened(dy).data(), bias.data(), true);
    EXPECT_LE(RelativeError(dbias.Read(), bias), 3e-6);
  }
}

TYPED_TEST(RowKernels, GradientsOfTablesMayBeKeptInFloatAndEitherMayBeLeftOut) {
  const EmbeddingShape shape = {.batch = 2, .sequence = 30, .width = 40};
  const auto tokens = RandomTokens(60, 11);
  const auto dy = KernelNumbers<TypeParam>(60 * 40, "dy");
  std::vector<float> table(11 * 40, 1), positions(30 * 40, 2);
  const KernelArray<int32_t> on_tokens(tokens);
  const KernelArray<TypeParam> on_dy(dy);
  const KernelArray<float> on_table(table), on_positions(positions);
  const auto write = [&](float* to_table, float* to_positions) {
    EXPECT_EQ((cuda::EmbeddingBackward<TypeParam, float>(nullptr, shape, on_tokens.data(),
                                                         on_dy.data(), {to_table, to_positions})),
              nullptr);
    EXPECT_TRUE(SameBits(on_table.Read(), table));
    EXPECT_TRUE(SameBits(on_positions.Read(), positions));
  };
  Embedding<float>().token_gradient(shape, tokens.data(), Widened(dy).data(), table.data());
  write(on_table.data(), nullptr);
  Embedding<float>().position_gradient(shape, Widened(dy).data(), positions.data());
  write(nullptr, on_positions.data());
}

TYPED_TEST(RowKernels, LossesAreAddedInDoubleAndRoundedOnce) {
  for (const int64_t n : {1, 60, 3000}) {
    const auto losses = RandomNumbers<double>(n, "losses");
    const KernelArray<double> on_losses(losses);
    const auto scratch = KernelArray<double>::Poisoned(cuda::TreeScratch(n));
    const auto sum = KernelArray<double>::Poisoned(1);
    const auto value = KernelArray<TypeParam>::Poisoned(1);
    ASSERT_EQ(cuda::SumLosses(nullptr, static_cast<const double*>(on_losses.data()), n,
                              scratch.data(), sum.data(), value.data()),
              nullptr);
    EXPECT_EQ(sum.Read()[0], TreeSum(losses));
    EXPECT_NEAR(Widened(value.Read())[0] / sum.Read()[0], 1, this->kTolerance);
  }
}

TYPED_TEST(RowKernels, BiasAndGeluTogether) {
  for (const RowShape shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(shape.rows, " x ", shape.width));
    const auto n = shape.rows * shape.width;
    const auto x = KernelNumbers<TypeParam>(n, "x", 2);
    const auto bias = KernelNumbers<TypeParam>(shape.width, "bias");
    std::vector<float> sums(n), expected(n);
    Bias<float>().fill(shape, Widened(bias).data(), Widened(x).data(), sums.data());
    const KernelArray<TypeParam> on_x(x), on_bias(bias);
    const auto pre = KernelArray<TypeParam>::Poisoned(n);
    const auto y = KernelArray<TypeParam>::Poisoned(n);
    ASSERT_EQ(cuda::BiasGeluForward<TypeParam>(nullptr, shape,
                                               {on_x.data(), on_bias.data(), pre.data()}, y.data()),
              nullptr);
    EXPECT_LE(RelativeError(Widened(pre.Read()), sums), this->kTolerance);
    Gelu<float>().forward(Widened(pre.Read()).data(), expected.data(), n);
    EXPECT_LE(RelativeError(Widened(y.Read()), expected), this->kTolerance);
    // The bias may be missing.
    ASSERT_EQ(
        cuda::BiasGeluForward<TypeParam>(nullptr, shape, {on_x.data(), nullptr, nullptr}, y.data()),
        nullptr);
    Gelu<float>().forward(Widened(x).data(), expected.data(), n);
    EXPECT_LE(RelativeError(Widened(y.Read()), expected), this->kTolerance);
  }
}

// Large gates are among them, where exp overflows. The gradients take the place of what they are
// made of.
TYPED_TEST(RowKernels, SwiGluAndItsGradientsInPlace) {
  for (const RowShape shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(shape.rows, " x ", shape.width));
    const auto n = shape.rows * shape.width;
    const auto gate = KernelNumbers<TypeParam>(n, "gate", shape.rows < 5 ? 2 : 100);
    auto gate_up = KernelNumbers<TypeParam>(2 * n, "up");
    for (int64_t row = 0; row < shape.rows; ++row) {
      std::copy_n(gate.begin() + row * shape.width, shape.width,
                  gate_up.begin() + 2 * row * shape.width);
    }
    const auto dy = KernelNumbers<TypeParam>(n, "dy");
    std::vector<float> expected(n), gradients(2 * n);
    SwiGlu<float>().forward(shape, Widened(gate_up).data(), expected.data());
    SwiGlu<float>().backward(shape, Widened(gate_up).data(), Widened(dy).data(), gradients.data());
    const KernelArray<TypeParam> on_gate_up(gate_up), on_dy(dy);
    const auto y = KernelArray<TypeParam>::Poisoned(n);
    ASSERT_EQ(cuda::SwiGluForward<TypeParam>(nullptr, shape, on_gate_up.data(), y.data()), nullptr);
    ASSERT_EQ(cuda::SwiGluBackward<TypeParam>(nullptr, shape, on_gate_up.data(), on_dy.data(),
                                              on_gate_up.data()),
              nullptr);
    EXPECT_LE(RelativeError(Widened(y.Read()), expected), this->kTolerance);
    EXPECT_LE(RelativeError(Widened(on_gate_up.Read()), gradients), this->kTolerance);
  }
}

TYPED_TEST(RowKernels, TheLossOfRowsAndItsScaledGradient) {
  for (const cuda::LogitShape shape : {cuda::LogitShape{1, 8},
                                       {3, 2},
                                       {5, 67},
                                       {4, 1032},
                                       {6, 5000},
                                       {3, 67, 72},
                                       {2, 5001, 5120}}) {
    SCOPED_TRACE(absl::StrCat(shape.rows, " x ", shape.width, " in rows of ", shape.stride));
    const auto n = shape.rows * shape.stride;
    const auto logits = KernelNumbers<TypeParam>(n, "logits", 4);
    auto targets = RandomTokens(shape.rows, shape.width, "targets");
    if (shape.rows > 2) targets[1] = kIgnoredTarget;
    std::vector<float> expected(n);
    std::vector<double> losses;
    for (int64_t row = 0; row < shape.rows; ++row) {
      const auto sum =
          CrossEntropy<float>().run({1, shape.width}, Widened(logits).data() + row * shape.stride,
                                    &targets[row], expected.data() + row * shape.stride);
      losses.push_back(sum.loss);
    }
    for (float& x : expected) x *= 0.25f;
    const KernelArray<int32_t> on_targets(targets);
    const KernelArray<float> scale(std::vector{0.25f});
    ForEverySchedule([&] {
      const KernelArray<TypeParam> on_logits(logits);
      const auto on_losses = KernelArray<double>::Poisoned(shape.rows);
      ASSERT_EQ(cuda::CrossEntropyRows(nullptr, shape, on_logits.data(), on_targets.data(), nullptr,
                                       on_losses.data()),
                nullptr);
      EXPECT_LE(RelativeError(on_losses.Read(), losses), 3e-6);
      EXPECT_TRUE(SameBits(on_logits.Read(), logits));  // no gradient was asked for
      ASSERT_EQ(cuda::CrossEntropyRows(nullptr, shape, on_logits.data(), on_targets.data(),
                                       scale.data(), on_losses.data()),
                nullptr);
      EXPECT_LE(RelativeError(on_losses.Read(), losses), 3e-6);
      EXPECT_LE(RelativeError(Widened(on_logits.Read()), expected), this->kTolerance);
    });
  }
}

}  // namespace
}  // namespace muster::kernels
