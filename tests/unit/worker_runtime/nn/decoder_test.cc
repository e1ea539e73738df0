#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "muster/decoder.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/nn/finite_difference.h"
#include "worker_runtime/kernels/adamw.h"

namespace muster {
namespace {

using ::muster::testing::ExpectSlopes;
using ::muster::testing::IsOk;
using ::muster::testing::RandomTokens;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DecoderConfig kTiny = {
    .layers = 2, .heads = 2, .hidden_size = 12, .context = 7, .vocabulary = 13};

// The parts that families choose, in the sizes of kTiny.
DecoderConfig TinyLlama() {
  DecoderConfig config = kTiny;
  config.kv_heads = 1;
  config.mlp_size = 17;
  config.parts.norm = NormKind::kRms;
  config.parts.rotary = RotaryPositions{.base = 20,
                                        .scaling = RotaryPositions::Scaling::kLlama3,
                                        .factor = 8,
                                        .original_context = 64};
  config.parts.mlp = Nonlinearity::kSwiGlu;
  config.parts.biases = DecoderParts::Biases::kNone;
  config.parts.tied = false;
  return config;
}
DecoderConfig TinyQwen25() {
  DecoderConfig config = TinyLlama();
  config.parts.rotary = RotaryPositions{.scaling = RotaryPositions::Scaling::kLinear, .factor = 2};
  config.parts.biases = DecoderParts::Biases::kQkv;
  config.parts.tied = true;
  return config;
}
DecoderConfig TinyQwen3() {
  DecoderConfig config = TinyLlama();
  config.heads = 4;
  config.kv_heads = 2;
  config.head_size = 6;
  config.parts.rotary = RotaryPositions{};
  config.parts.head_norms = true;
  config.parts.norm_epsilon =
      1e-2;  // a norm of small numbers is bent too much for finite differences
  return config;
}
DecoderConfig TinyGranite() {
  DecoderConfig config = TinyLlama();
  config.parts.tied = true;
  config.parts.multipliers = {.embedding = 3, .residual = 0.4, .scores = 0.7, .logits = 0.5};
  return config;
}
struct Family {
  const char* name;
  DecoderConfig config;
};
std::vector<Family> Families() {
  return {{"Gpt2", kTiny},
          {"Llama", TinyLlama()},
          {"Qwen25", TinyQwen25()},
          {"Qwen3", TinyQwen3()},
          {"Granite", TinyGranite()}};
}

TEST(DecoderConfig, NamesHeadsThatDoNotDivideTheHiddenSizeAndWhatWouldFit) {
  DecoderConfig config;
  config.heads = 7;
  EXPECT_THAT(config.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("384 is not a multiple of 7; try heads 6 or hidden size 385")));
  config.heads = 1000;
  EXPECT_THAT(config.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("try heads 384")));
}

TEST(DecoderConfig, RefusesSizesBelowOneAndAbsurdOnes) {
  for (int64_t DecoderConfig::*size :
       {&DecoderConfig::layers, &DecoderConfig::heads, &DecoderConfig::hidden_size,
        &DecoderConfig::context, &DecoderConfig::vocabulary}) {
    for (const int64_t bad : {int64_t{0}, int64_t{-3}, int64_t{1} << 40}) {
      DecoderConfig config;
      config.*size = bad;
      EXPECT_THAT(config.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr(absl::StrCat("not ", bad))));
    }
  }
}

// A rotary model has no table that would show how long its sequences may be.
TEST(DecoderConfig, RefusesAContextBeyondWhatARotaryModelWasMadeFor) {
  DecoderConfig config = TinyLlama();
  config.parts.rotary->context_max = 7;
  EXPECT_THAT(config.Validate(), IsOk());
  config.context = 8;
  EXPECT_THAT(config.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("context must be at most 7, the tokens that the model was made "
                                 "for, not 8")));
}

TEST(Decoder, RefusesSequencesThatAreLongerThanTheContext) {
  for (const Family& family : Families()) {
    ParameterStore store;
    const auto decoder = *Decoder::Create(family.config, store);
    store.BindToOwnBuffers();
    store.Initialize(1);
    TensorPool pool;
    Tape tape(pool, Tape::Mode::kInference);
    const std::vector<int32_t> tokens = RandomTokens(8, kTiny.vocabulary);
    decoder->Forward(tape, {tokens, 1, 8});
    EXPECT_THAT(tape.status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("a sequence of 8 tokens is longer than the context of 7")))
        << family.name;
  }
}

TEST(Decoder, CountsItsParametersAsDeclared) {
  std::vector<Family> families = Families();
  families.push_back({"default", {}});
  for (const Family& family : families) {
    ParameterStore store;
    ASSERT_THAT(Decoder::Create(family.config, store), IsOk());
    EXPECT_EQ(family.config.num_parameters(), store.num_elements()) << family.name;
  }
  const DecoderConfig gpt2 = {
      .layers = 12, .heads = 12, .hidden_size = 768, .context = 1024, .vocabulary = 50257};
  EXPECT_EQ(gpt2.num_parameters(), 124439808);
}

TEST(Decoder, DeclaresOneUnitPerBlock) {
  ParameterStore store;
  ASSERT_THAT(Decoder::Create(kTiny, store), IsOk());
  EXPECT_EQ(store.unit_names(), (std::vector<std::string>{"embedding", "h.0", "h.1", "head"}));
  EXPECT_EQ(store.Find("h.1.mlp.c_fc.weight")->unit(), 2);
  EXPECT_TRUE(store.Find("h.1.mlp.c_fc.weight")->spec().weight_decay);
  EXPECT_FALSE(store.Find("h.1.mlp.c_fc.bias")->spec().weight_decay);
}

TEST(Decoder, StartsNearTheLossOfAGuess) {
  ParameterStore store;
  const auto gpt = *Decoder::Create(kTiny, store);
  store.BindToOwnBuffers();
  store.Initialize(1);
  TensorPool pool;
  Tape tape(pool, Tape::Mode::kInference);
  const auto tokens = RandomTokens(15, kTiny.vocabulary);
  const absl::Span<const int32_t> all(tokens);
  const Loss loss = gpt->ComputeLoss(tape, {all.first(14), 2, 7}, all.subspan(1, 14));
  EXPECT_NEAR(loss.mean(), std::log(13.0), 0.05);
}

struct DoubleModel {
  ParameterStore store{DType::kF64};
  std::unique_ptr<Decoder> decoder;
  TensorPool pool;
  std::vector<int32_t> tokens = RandomTokens(15, kTiny.vocabulary);

  explicit DoubleModel(const DecoderConfig& config = kTiny, const DecoderAdapters& adapters = {})
      : decoder(*Decoder::Create(config, store, adapters)) {
    store.BindToOwnBuffers();
    store.Initialize(1);
    // Larger than at the start, so that every path carries a gradient worth measuring.
    for (double& value : store.flat_values().span<double>()) value = 5 * value + 0.05;
  }
  Loss Forward(Tape& tape) {
    const absl::Span<const int32_t> all(tokens);
    return decoder->ComputeLoss(tape, {all.first(14), 2, 7}, all.subspan(1, 14));
  }
};

class DecoderFamilies : public ::testing::TestWithParam<Family> {};
INSTANTIATE_TEST_SUITE_P(Decoder, DecoderFamilies, ::testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DecoderFamilies, GradientsOfTheWholeModelEqualFiniteDifferencesHoweverItIsRecomputed) {
  DoubleModel model(GetParam().config);
  using Kind = Recompute::Kind;
  for (const Kind kind : {Kind::kNone, Kind::kSelective, Kind::kFull}) {
    model.store.ForgetGradients();
    Tape tape(model.pool);
    tape.set_recompute({.kind = kind});
    tape.Backward(model.Forward(tape).output);
    const auto value = [&] {
      Tape inference(model.pool, Tape::Mode::kInference);
      return model.Forward(inference).sum;
    };
    for (const auto& parameter : model.store.parameters()) {
      ExpectSlopes(parameter->value().span<double>(), parameter->gradient().span<double>(), value,
                   2e-6, parameter->name(), /*stride=*/parameter->num_elements() / 20 + 1);
    }
  }
}

// The two halves of a backward pass, as pipelines that fill bubbles run them.
TEST_P(DecoderFamilies, HasTheSameGradientsWhenWeightsComeLater) {
  DoubleModel whole(GetParam().config), halves(GetParam().config);
  Tape tape(whole.pool), split(halves.pool);
  tape.Backward(whole.Forward(tape).output);
  split.BackwardInputs(halves.Forward(split).output);
  split.BackwardWeights();
  EXPECT_TRUE(SameBits(whole.store.flat_gradients().span<double>(),
                       halves.store.flat_gradients().span<double>()));
}

TEST(DecoderAdapters, HaveGradientsThatEqualFiniteDifferencesAndTheModelBeneathHasNone) {
  DoubleModel model(kTiny, {.rank = 3, .beside = "h.*.c_*.weight"});
  Tape tape(model.pool);
  tape.Backward(model.Forward(tape).output);
  const auto value = [&] {
    Tape inference(model.pool, Tape::Mode::kInference);
    return model.Forward(inference).sum;
  };
  int num_learned = 0;
  for (const auto& parameter : model.store.parameters()) {
    const bool is_adapter = absl::StrContains(parameter->name(), ".lora.");
    EXPECT_EQ(parameter->frozen(), !is_adapter) << parameter->name();
    EXPECT_EQ(parameter->has_gradient(), is_adapter) << parameter->name();
    if (!is_adapter) continue;
    ++num_learned;
    ExpectSlopes(parameter->value().span<double>(), parameter->gradient().span<double>(), value,
                 1e-5, parameter->name(), /*stride=*/parameter->num_elements() / 20 + 1);
  }
  EXPECT_EQ(num_learned, 2 * 4 * 2);  // down and up of four matrices of two blocks
}

TEST(DecoderAdapters, ChangeNothingBeforeTheyHaveLearned) {
  const auto loss_of = [](const DecoderAdapters& adapters) {
    ParameterStore store;
    const auto gpt = *Decoder::Create(kTiny, store, adapters);
    store.BindToOwnBuffers();
    store.Initialize(1);
    TensorPool pool;
    Tape tape(pool, Tape::Mode::kInference);
    const auto tokens = RandomTokens(15, kTiny.vocabulary);
    const absl::Span<const int32_t> all(tokens);
    return gpt->ComputeLoss(tape, {all.first(14), 2, 7}, all.subspan(1, 14)).mean();
  };
  EXPECT_EQ(loss_of({.rank = 2}), loss_of({}));
}

TEST(DecoderAdapters, AreRefusedBesideWhatIsNoMatrixOfABlock) {
  const auto refusal = [](const DecoderAdapters& adapters) {
    ParameterStore store;
    return Decoder::Create(kTiny, store, adapters).status();
  };
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refusal({.rank = 2, .beside = "h.0.attn.c_atn.weight"}),
              StatusIs(kWrong, AllOf(HasSubstr("it fits no parameter of the model"),
                                     HasSubstr("did you mean h.0.attn.c_attn.weight?"))));
  EXPECT_THAT(refusal({.rank = 2, .beside = "h.0.attn.*"}),
              StatusIs(kWrong, HasSubstr("it fits h.0.attn.c_attn.bias, which is not a matrix")));
  EXPECT_THAT(refusal({.rank = 2, .beside = "*.weight"}),
              StatusIs(kWrong, HasSubstr("it fits wte.weight, a table of embeddings")));
  EXPECT_THAT(refusal({.rank = 13}), StatusIs(kWrong, HasSubstr("the hidden size, which is 12")));
}

TEST(Decoder, GradientsInFloatEqualThoseInDouble) {
  DoubleModel wide;
  ParameterStore store;
  const auto gpt = *Decoder::Create(kTiny, store);
  store.BindToOwnBuffers();
  const auto wide_values = wide.store.flat_values().span<double>();
  std::copy(wide_values.begin(), wide_values.end(), store.flat_values().data<float>());
  Tape wide_tape(wide.pool);
  const Loss wide_loss = wide.Forward(wide_tape);
  wide_tape.Backward(wide_loss.output);
  Tape tape(wide.pool);
  const absl::Span<const int32_t> all(wide.tokens);
  const Loss loss = gpt->ComputeLoss(tape, {all.first(14), 2, 7}, all.subspan(1, 14));
  tape.Backward(loss.output);
  EXPECT_NEAR(loss.sum / wide_loss.sum, 1, 1e-6);
  EXPECT_LT(RelativeError(store.flat_gradients().span<float>(),
                          wide.store.flat_gradients().span<double>()),
            1e-5);
}

TEST(Decoder, OverfitsAShortTextInSomeTensOfSteps) {
  ParameterStore store;
  const DecoderConfig config = {
      .layers = 2, .heads = 2, .hidden_size = 32, .context = 32, .vocabulary = 128};
  const auto gpt = *Decoder::Create(config, store);
  store.BindToOwnBuffers();
  store.Initialize(1);
  const std::string text = "the quick brown fox jumps over it";
  const std::vector<int32_t> ids(text.begin(), text.end());
  const absl::Span<const int32_t> all(ids);
  std::vector<float> first_moment(store.num_elements()), second_moment(store.num_elements());
  TensorPool pool;
  Tape tape(pool);
  double loss = 0;
  for (int step = 1; step <= 60; ++step) {
    store.ForgetGradients();
    const Loss now = gpt->ComputeLoss(tape, {all.first(32), 1, 32}, all.subspan(1, 32));
    tape.Backward(now.output);
    loss = now.mean();
    kernels::AdamW<float>().update(
        {.learning_rate = 1e-2,
         .weight_decay = 0,
         .gradient_scale = 1.0 / now.num_tokens,
         .step = step},
        store.flat_gradients().data<float>(),
        {store.flat_values().data<float>(), first_moment.data(), second_moment.data()},
        store.num_elements());
  }
  EXPECT_LT(loss, 0.1);

  // Having learned it by heart, it recites it.
  const auto recited = Generate(*gpt, pool, all.first(8), {.num_tokens = 20, .temperature = 0});
  ASSERT_THAT(recited, IsOk());
  EXPECT_EQ(std::string(recited->begin(), recited->end()), text.substr(8, 20));
}

class Generation : public ::testing::TestWithParam<Family> {
 protected:
  Generation() {
    store_.BindToOwnBuffers();
    store_.Initialize(1);
    for (float& value : store_.flat_values().span<float>()) value *= 10;
  }
  // The likeliest next token by a whole forward pass over `text`.
  int32_t Next(absl::Span<const int32_t> text) {
    Tape tape(pool_, Tape::Mode::kInference);
    const int64_t n = text.size();
    const auto logits =
        gpt_->Forward(tape, {text, 1, n}).value.span<float>().last(kTiny.vocabulary);
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  }

  ParameterStore store_;
  std::unique_ptr<Decoder> gpt_ = *Decoder::Create(GetParam().config, store_);
  TensorPool pool_;
};

INSTANTIATE_TEST_SUITE_P(Of, Generation, ::testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Generation, TokenByTokenEqualsWholeForwardPasses) {
  std::vector<int32_t> text = {1, 5, 2};
  const auto sample = Generate(*gpt_, pool_, text, {.num_tokens = 4, .temperature = 0});
  ASSERT_THAT(sample, IsOk());
  for (const int32_t token : *sample) {
    EXPECT_EQ(token, Next(text));
    text.push_back(token);
  }
}

TEST_P(Generation, GoesOnPastTheContextAndTakesLongPrompts) {
  const auto prompt = RandomTokens(40, kTiny.vocabulary);
  const auto sample = Generate(*gpt_, pool_, prompt, {.num_tokens = 30});
  ASSERT_THAT(sample, IsOk());
  EXPECT_EQ(sample->size(), 30u);
}

TEST_P(Generation, DependsOnTheSeedAlone) {
  const std::vector<int32_t> prompt = {1};
  const GenerateOptions options = {.num_tokens = 30, .temperature = 2, .seed = 4};
  GenerateOptions other = options;
  other.seed = 5;
  EXPECT_EQ(*Generate(*gpt_, pool_, prompt, options), *Generate(*gpt_, pool_, prompt, options));
  EXPECT_NE(*Generate(*gpt_, pool_, prompt, options), *Generate(*gpt_, pool_, prompt, other));
}

TEST_P(Generation, RefusesWhatItCannotDo) {
  const std::vector<int32_t> none, strange = {99}, fine = {1};
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Generate(*gpt_, pool_, none, {}), StatusIs(kInvalid, HasSubstr("prompt")));
  EXPECT_THAT(Generate(*gpt_, pool_, strange, {}), StatusIs(kInvalid, HasSubstr("token 99")));
  EXPECT_THAT(Generate(*gpt_, pool_, fine, {.temperature = -1}),
              StatusIs(kInvalid, HasSubstr("-1")));
  EXPECT_THAT(Generate(*gpt_, pool_, fine, {.num_tokens = -2}),
              StatusIs(kInvalid, HasSubstr("-2")));
}

}  // namespace
}  // namespace muster
