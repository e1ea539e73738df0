// Kernels that work row by row beside their host twins: embedding, layer norm, bias, GELU, the
// loss.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "muster/sum_tree.h"
#include "tests/unit/worker_runtime/kernels/kernel_numbers.h"
#include "worker_runtime/kernels/bias.h"
#include "worker_runtime/kernels/cross_entropy.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/embedding.h"
#include "worker_runtime/kernels/gelu.h"
#include "worker_runtime/kernels/layer_norm.h"

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

// Layer norm on the host, in float, from what kernels see.
struct HostLayerNorm {
  std::vector<float> y, mean, rstd, dx, dgamma, dbeta;
};
template <typename T>
struct LayerNormInputs {
  explicit LayerNormInputs(RowShape of)
      : shape(of),
        x(KernelNumbers<T>(of.rows * of.width, "x")),
        dy(KernelNumbers<T>(of.rows * of.width, "dy")),
        addend(KernelNumbers<T>(of.rows * of.width, "addend")),
        gamma(KernelNumbers<T>(of.width, "gamma")),
        beta(KernelNumbers<T>(of.width, "beta")) {}

  HostLayerNorm OnHost() const {
    const size_t n = x.size();
    const size_t rows = shape.rows;
    HostLayerNorm host{std::vector<float>(n),
                       std::vector<float>(rows),
                       std::vector<float>(rows),
                       std::vector<float>(n),
                       Widened(beta),
                       Widened(beta)};
    const LayerNormKernels<float>::Saved saved = {host.mean.data(), host.rstd.data()};
    const auto& kernels = LayerNorm<float>();
    const auto wide_x = Widened(x);
    const auto wide_gamma = Widened(gamma);
    const auto wide_dy = Widened(dy);
    kernels.forward(shape, wide_x.data(), {wide_gamma.data(), Widened(beta).data(), 1e-5},
                    host.y.data(), saved);
    kernels.input_gradient(shape, wide_x.data(), wide_dy.data(), wide_gamma.data(), saved,
                           Widened(addend).data(), host.dx.data());
    kernels.weight_gradient(shape, wide_x.data(), wide_dy.data(), saved,
                            {host.dgamma.data(), host.dbeta.data(), true});
    return host;
  }

  RowShape shape;
  std::vector<T> x, dy, addend, gamma, beta;
};

TYPED_TEST(RowKernels, LayerNormAndItsGradients) {
  for (const RowShape shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(shape.rows, " x ", shape.width));
    const LayerNormInputs<TypeParam> in(shape);
    const KernelArray<TypeParam> x(in.x), dy(in.dy), gamma(in.gamma), beta(in.beta),
        dgamma(in.beta), dbeta(in.beta), dx(in.addend);
    const auto y = KernelArray<TypeParam>::Poisoned(in.x.size());
    const auto mean = KernelArray<float>::Poisoned(shape.rows);
    const auto rstd = KernelArray<float>::Poisoned(shape.rows);
    const auto scratch = KernelArray<float>::Poisoned(cuda::NormScratch(shape));
    const cuda::LayerNormSaved saved = {mean.data(), rstd.data()};
    ASSERT_EQ(cuda::LayerNormForward<TypeParam>(nullptr, shape, x.data(),
                                                {gamma.data(), beta.data(), 1e-5}, y.data(), saved),
              nullptr);
    // dx takes the place of what is added to it.
    ASSERT_EQ(cuda::LayerNormBackward<TypeParam>(
                  nullptr, shape, {x.data(), dy.data(), dx.data()}, gamma.data(), saved, dx.data(),
                  {dgamma.data(), dbeta.data(), true}, scratch.data()),
              nullptr);
    const HostLayerNorm host = in.OnHost();
    EXPECT_LE(RelativeError(mean.Read(), host.mean), 3e-6);
    EXPECT_LE(RelativeError(rstd.Read(), host.rstd), 3e-6);
    EXPECT_LE(RelativeError(Widened(y.Read()), host.y), this->kTolerance);
    EXPECT_LE(RelativeError(Widened(dgamma.Read()), host.dgamma), this->kTolerance);
    EXPECT_LE(RelativeError(Widened(dbeta.Read()), host.dbeta), this->kTolerance);
    // A row of one number has no deviation: rstd is large and the gradient cancels.
    if (shape.width > 1) {
      EXPECT_LE(RelativeError(Widened(dx.Read()), host.dx), this->kTolerance);
    }
  }
}

TYPED_TEST(RowKernels, LayerNormWithoutAddendNorSumsFromBefore) {
  const RowShape shape = {6, 40};
  const LayerNormInputs<TypeParam> in(shape);
  const KernelArray<TypeParam> x(in.x), dy(in.dy), gamma(in.gamma), beta(in.beta);
  const auto poisoned = [](size_t n) { return KernelArray<TypeParam>::Poisoned(n); };
  const auto y = poisoned(240), dx = poisoned(240), dgamma = poisoned(40), dbeta = poisoned(40);
  const auto statistics = KernelArray<float>::Poisoned(12);
  const auto scratch = KernelArray<float>::Poisoned(cuda::NormScratch(shape));
  const cuda::LayerNormSaved saved = {statistics.data(), statistics.data() + 6};
  ASSERT_EQ(cuda::LayerNormForward<TypeParam>(nullptr, shape, x.data(),
                                              {gamma.data(), beta.data(), 1e-5}, y.data(), saved),
            nullptr);
  ASSERT_EQ(cuda::LayerNormBackward<TypeParam>(
                nullptr, shape, {x.data(), dy.data(), nullptr}, gamma.data(), saved, dx.data(),
                {dgamma.data(), dbeta.data(), false}, scratch.data()),
            nullptr);
  HostLayerNorm host = in.OnHost();
  for (size_t i = 0; i < host.dx.size(); ++i) host.dx[i] -= Widened(in.addend)[i];
  for (size_t i = 0; i < 40; ++i) host.dgamma[i] -= Widened(in.beta)[i];
  for (size_t i = 0; i < 40; ++i) host.dbeta[i] -= Widened(in.beta)[i];
  EXPECT_LE(RelativeError(Widened(y.Read()), host.y), this->kTolerance);
  EXPECT_LE(RelativeError(Widened(dx.Read()), host.dx), this->kTolerance);
  EXPECT_LE(RelativeError(Widened(dgamma.Read()), host.dgamma), this->kTolerance);
  EXPECT_LE(RelativeError(Widened(dbeta.Read()), host.dbeta), this->kTolerance);
}

// Pipelines ask for one now and for the other later. Widths: of one block, and of two.
TYPED_TEST(RowKernels, LayerNormsGradientsHaveTheSameBitsTogetherAndApart) {
  for (const RowShape shape : {RowShape{37, 72}, RowShape{5, 4107}, RowShape{19, 8200}}) {
    SCOPED_TRACE(absl::StrCat(shape.rows, " x ", shape.width));
    const LayerNormInputs<TypeParam> in(shape);
    const KernelArray<TypeParam> x(in.x), dy(in.dy), gamma(in.gamma), addend(in.addend);
    const KernelArray<float> statistics(KernelNumbers<float>(2 * shape.rows, "statistics"));
    const cuda::LayerNormSaved saved = {statistics.data(), statistics.data() + shape.rows};
    const auto scratch = KernelArray<float>::Poisoned(cuda::NormScratch(shape));
    const auto run = [&](bool of_input, bool of_weights) {
      const auto dx = KernelArray<TypeParam>::Poisoned(in.x.size());
      const auto dgamma = KernelArray<TypeParam>::Poisoned(shape.width);
      const auto dbeta = KernelArray<TypeParam>::Poisoned(shape.width);
      EXPECT_EQ(
          cuda::LayerNormBackward<TypeParam>(
              nullptr, shape, {x.data(), dy.data(), addend.data()}, gamma.data(), saved,
              of_input ? dx.data() : nullptr,
              {of_weights ? dgamma.data() : nullptr, of_weights ? dbeta.data() : nullptr, false},
              scratch.data()),
          nullptr);
      return std::vector{dx.Read(), dgamma.Read(), dbeta.Read()};
    };
    const auto together = run(true, true);
    EXPECT_TRUE(SameBits(run(true, false)[0], together[0]));
    const auto weights = run(false, true);
    EXPECT_TRUE(SameBits(weights[1], together[1]));
    EXPECT_TRUE(SameBits(weights[2], together[2]));
  }
}

TYPED_TEST(RowKernels, SumsOverRowsHaveTheSameBitsInEverySchedule) {
  const RowShape shape = {600, 45};
  const LayerNormInputs<TypeParam> in(shape);
  const KernelArray<TypeParam> x(in.x), dy(in.dy), gamma(in.gamma);
  const KernelArray<float> statistics(KernelNumbers<float>(1200, "statistics"));
  const auto scratch = KernelArray<float>::Poisoned(cuda::NormScratch(shape));
  std::vector<TypeParam> before;
  ForEverySchedule([&] {
    const auto dgamma = KernelArray<TypeParam>::Poisoned(45);
    const auto dbeta = KernelArray<TypeParam>::Poisoned(45);
    ASSERT_EQ(cuda::LayerNormBackward<TypeParam>(
                  nullptr, shape, {x.data(), dy.data(), nullptr}, gamma.data(),
                  {statistics.data(), statistics.data() + 600}, nullptr,
                  {dgamma.data(), dbeta.data(), false}, scratch.data()),
              nullptr);
    if (before.empty()) before = dgamma.Read();
    EXPECT_TRUE(SameBits(dgamma.Read(), before));
  });
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

// Gradients in float beside activations of any type are what the sums were before they would be
// rounded.
TYPED_TEST(RowKernels, GradientsOfWeightsMayBeKeptInFloat) {
  for (const RowShape shape : {RowShape{9, 264}, {300, 37}}) {
    SCOPED_TRACE(absl::StrCat(shape.rows, " x ", shape.width));
    const LayerNormInputs<TypeParam> in(shape);
    const auto before = Widened(in.beta);
    const KernelArray<TypeParam> x(in.x), dy(in.dy), gamma(in.gamma), beta(in.beta);
    const auto y = KernelArray<TypeParam>::Poisoned(in.x.size());
    const auto statistics = KernelArray<float>::Poisoned(2 * shape.rows);
    const auto scratch = KernelArray<float>::Poisoned(cuda::NormScratch(shape));
    const KernelArray<float> dbias(before), dgamma(before), dbeta(before);
    const cuda::LayerNormSaved saved = {statistics.data(), statistics.data() + shape.rows};
    ASSERT_EQ(cuda::BiasGradient(nullptr, shape, static_cast<const TypeParam*>(dy.data()),
                                 dbias.data(), true, scratch.data()),
              nullptr);
    ASSERT_EQ(cuda::LayerNormForward<TypeParam>(nullptr, shape, x.data(),
                                                {gamma.data(), beta.data(), 1e-5}, y.data(), saved),
              nullptr);
    ASSERT_EQ((cuda::LayerNormBackward<TypeParam, float>(
                  nullptr, shape, {x.data(), dy.data(), nullptr}, gamma.data(), saved, nullptr,
                  {dgamma.data(), dbeta.data(), true}, scratch.data())),
              nullptr);
    const HostLayerNorm host = in.OnHost();
    auto bias = before;
    Bias<float>().gradient(shape, Widened(in.dy).data(), bias.data(), true);
    EXPECT_LE(RelativeError(dbias.Read(), bias), 3e-6);
    EXPECT_LE(RelativeError(dgamma.Read(), host.dgamma), 3e-6);
    EXPECT_LE(RelativeError(dbeta.Read(), host.dbeta), 3e-6);
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
