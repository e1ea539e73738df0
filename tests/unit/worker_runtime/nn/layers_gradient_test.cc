// Every layer's gradients against finite differences in double.
#include <gtest/gtest.h>

#include "muster/layers.h"
#include "tests/unit/worker_runtime/nn/finite_difference.h"

namespace muster {
namespace {

using ::muster::testing::ExpectSlopes;
using ::muster::testing::LayerUnderTest;
using ::muster::testing::RandomNumbers;
using ::muster::testing::RandomTokens;

class Gradient : public ::testing::Test {
 protected:
  ParameterStore store_{DType::kF64};
};

TEST_F(Gradient, OfLinear) {
  const Linear linear(Scope(store_), {.inputs = 5, .outputs = 7, .initial_std = 0.5});
  LayerUnderTest test(store_, {2, 3, 5},
                      [&](Tape& tape, const Activation& x) { return linear.Forward(tape, x); });
  test.ExpectGradientsEqualSlopes();
}

TEST_F(Gradient, OfLinearOntoAResidual) {
  const Linear linear(Scope(store_), {.inputs = 5, .outputs = 5, .initial_std = 0.5});
  LayerUnderTest test(store_, {2, 3, 5}, [&](Tape& tape, const Activation& x) {
    return linear.ForwardOnto(tape, x, x);
  });
  test.ExpectGradientsEqualSlopes();
}

TEST_F(Gradient, OfTwoLinearLayersWithANonlinearityBetweenThemKeptOrComputedAgain) {
  const Linear widen(Scope(store_) / "widen", {.inputs = 5, .outputs = 14, .initial_std = 0.5});
  const Linear narrow(Scope(store_) / "narrow", {.inputs = 14, .outputs = 5, .initial_std = 0.5});
  const Linear gated(Scope(store_) / "gated", {.inputs = 7, .outputs = 5, .initial_std = 0.5});
  for (const auto kind : {Recompute::Kind::kNone, Recompute::Kind::kSelective}) {
    LayerUnderTest test(store_, {2, 3, 5}, [&](Tape& tape, const Activation& x) {
      tape.set_recompute({.kind = kind});
      const Activation y = narrow.ForwardOntoActivated(
          tape, x, widen.ForwardActivated(tape, x, Nonlinearity::kGelu));
      return gated.ForwardOntoActivated(tape, y,
                                        widen.ForwardActivated(tape, y, Nonlinearity::kSwiGlu));
    });
    test.ExpectGradientsEqualSlopes();
  }
}

TEST_F(Gradient, OfLayerNorm) {
  const Norm norm(Scope(store_), 19);
  LayerUnderTest test(store_, {4, 19},
                      [&](Tape& tape, const Activation& x) { return norm.Forward(tape, x); });
  test.ExpectGradientsEqualSlopes();
}

TEST_F(Gradient, OfRmsNorm) {
  const Norm norm(Scope(store_), 19, NormKind::kRms);
  LayerUnderTest test(store_, {4, 19},
                      [&](Tape& tape, const Activation& x) { return norm.Forward(tape, x); });
  test.ExpectGradientsEqualSlopes();
}

TEST_F(Gradient, OfNormsOfHeads) {
  const HeadNorms norms(Scope(store_), {.heads = 4, .kv_heads = 2, .head_size = 3});
  LayerUnderTest test(store_, {2, 3, 24},
                      [&](Tape& tape, const Activation& x) { return norms.Forward(tape, x); });
  test.ExpectGradientsEqualSlopes();
}

TEST_F(Gradient, OfLinearWithoutBias) {
  const Linear linear(Scope(store_),
                      {.inputs = 5, .outputs = 5, .initial_std = 0.5, .bias = false});
  LayerUnderTest test(store_, {2, 3, 5}, [&](Tape& tape, const Activation& x) {
    return linear.ForwardOnto(tape, linear.Forward(tape, x), x);
  });
  test.ExpectGradientsEqualSlopes();
}

TEST_F(Gradient, OfAProductWithANumber) {
  LayerUnderTest test(store_, {3, 17},
                      [&](Tape& tape, const Activation& x) { return Scale(tape, x, 0.22); });
  test.ExpectGradientsEqualSlopes();
}

TEST_F(Gradient, OfSwiGlu) {
  const Nonlinear swiglu(Nonlinearity::kSwiGlu);
  LayerUnderTest test(store_, {3, 34},
                      [&](Tape& tape, const Activation& x) { return swiglu.Forward(tape, x); });
  test.ExpectGradientsEqualSlopes();
}

TEST_F(Gradient, OfGelu) {
  const Nonlinear gelu(Nonlinearity::kGelu);
  LayerUnderTest test(store_, {3, 17},
                      [&](Tape& tape, const Activation& x) { return gelu.Forward(tape, x); });
  test.ExpectGradientsEqualSlopes();
}

TEST_F(Gradient, OfCausalAttention) {
  const std::vector<double> turns = {1, 0.3};
  for (const CausalAttention::Options& options : {CausalAttention::Options{.heads = 2},
                                                  {.heads = 4, .kv_heads = 2},
                                                  {.heads = 3, .kv_heads = 1, .score_scale = 0.9},
                                                  {.heads = 2, .kv_heads = 1, .rotary = turns}}) {
    const CausalAttention attention(options);
    const int64_t heads = options.heads + 2 * (options.kv_heads == 0 ? 2 : options.kv_heads);
    LayerUnderTest test(store_, {2, 5, heads * 4}, [&](Tape& tape, const Activation& x) {
      return attention.Forward(tape, Scale(tape, x, 1.1));  // which it may write over
    });
    test.ExpectGradientsEqualSlopes();
  }
}

TEST_F(Gradient, OfASumThatUsesItsInputThreeTimes) {
  const Nonlinear gelu(Nonlinearity::kGelu);
  LayerUnderTest test(store_, {3, 5}, [&](Tape& tape, const Activation& x) {
    return Add(tape, Add(tape, x, gelu.Forward(tape, x)), x);
  });
  test.ExpectGradientsEqualSlopes();
}

TEST_F(Gradient, OfAHeadWhoseTableIsUsedTwice) {
  Parameter& table =
      store_.Declare({.name = "table", .shape = {6, 6}, .initializer = Initializer::Normal(0.5)});
  LayerUnderTest test(store_, {2, 6}, [&](Tape& tape, const Activation& x) {
    return LmHead(tape, LmHead(tape, x, table), table);
  });
  test.ExpectGradientsEqualSlopes();
}

class EmbeddingGradient : public Gradient, public ::testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(WithPositionsAndWithout, EmbeddingGradient, ::testing::Values(4, 0));

TEST_P(EmbeddingGradient, EqualsSlopes) {
  const Embedding embedding(Scope(store_), {.vocabulary = 7, .context = GetParam(), .width = 3});
  store_.BindToOwnBuffers();
  store_.Initialize(1);
  TensorPool pool;
  const auto tokens = RandomTokens(6, 7);
  const TokenBatch batch = {.tokens = tokens, .batch = 2, .sequence = 3};
  auto weights = RandomNumbers<double>(18, "weights");
  Tape tape(pool);
  const Activation y = embedding.Forward(tape, batch);
  tape.Backward(y, Tensor::Borrow(weights.data(), DType::kF64, y.value.shape()));
  const auto value = [&] {
    Tape inference(pool, Tape::Mode::kInference);
    const auto out = embedding.Forward(inference, batch).value.span<double>();
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) sum += weights[i] * out[i];
    return sum;
  };
  for (const auto& parameter : store_.parameters()) {
    ExpectSlopes(parameter->value().span<double>(), parameter->gradient().span<double>(), value,
                 1e-7, parameter->name());
  }
}

TEST_F(Gradient, OfScaledCrossEntropyWithIgnoredTargets) {
  TensorPool pool;
  auto numbers = RandomNumbers<double>(5 * 9, "logits", 2);
  const Tensor logits = Tensor::Borrow(numbers.data(), DType::kF64, {5, 9});
  const std::vector<int32_t> targets = {3, -1, 0, 8, 3};
  Tape tape(pool);
  const Activation x = tape.Watch(logits);
  const Loss loss = CrossEntropy(tape, x, targets);
  EXPECT_EQ(loss.num_tokens, 4);
  tape.Backward(loss.output, 0.25);
  const Tensor dx = tape.TakeGradient(x);
  const auto value = [&] {
    Tape inference(pool, Tape::Mode::kInference);
    return CrossEntropy(inference, {logits}, targets).sum * 0.25;
  };
  ExpectSlopes(absl::MakeSpan(numbers), dx.span<double>(), value, 1e-7, "logits");
}

TEST(ValidateTokens, NamesTheTokenThatDoesNotFit) {
  const std::vector<int32_t> tokens = {1, 2, 3, 300};
  const absl::Status status = ValidateTokens({.tokens = tokens, .batch = 2, .sequence = 2}, 256);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "token 300 at position 1 of sequence 1 is outside the vocabulary of 256; was the data "
            "made with another tokenizer?");
  EXPECT_FALSE(ValidateTokens({.tokens = tokens, .batch = 2, .sequence = 3}, 512).ok());
  EXPECT_TRUE(ValidateTokens({.tokens = tokens, .batch = 2, .sequence = 2}, 301).ok());
}

TEST(ValidateTokens, PassesIgnoredTargetsOnlyWhereAllowed) {
  const std::vector<int32_t> tokens = {-1};
  EXPECT_FALSE(ValidateTokens({tokens, 1, 1}, 2).ok());
  EXPECT_TRUE(ValidateTokens({tokens, 1, 1}, 2, /*allow_ignored=*/true).ok());
}

}  // namespace
}  // namespace muster
