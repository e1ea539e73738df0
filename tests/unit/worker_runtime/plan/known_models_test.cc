#include "worker_runtime/plan/known_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/support/status_matchers.h"

namespace muster::plan {
namespace {

using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

// The numbers that the models' makers publish.
TEST(KnownModels, HaveThePublishedNumbersOfParameters) {
  for (const auto& [name, parameters] : {std::pair<const char*, int64_t>{"gpt2-124m", 124'439'808},
                                         {"gpt2-350m", 354'823'168},
                                         {"gpt2-774m", 774'030'080},
                                         {"gpt2-1558m", 1'557'611'200},
                                         {"llama-2-7b", 6'738'415'616},
                                         {"llama-2-13b", 13'015'864'320},
                                         {"llama-3-8b", 8'030'261'248},
                                         {"llama-3-70b", 70'553'706'496},
                                         {"llama-3.2-1b", 1'235'814'400},
                                         {"llama-3.2-3b", 3'212'749'824},
                                         {"qwen2.5-0.5b", 494'032'768},
                                         {"qwen2.5-1.5b", 1'543'714'304},
                                         {"qwen2.5-7b", 7'615'616'512},
                                         {"qwen3-0.6b", 596'049'920},
                                         {"qwen3-8b", 8'190'735'360}}) {
    EXPECT_EQ(FindKnownModel(name)->num_parameters(), parameters) << name;
  }
}

TEST(KnownModels, AreValid) {
  for (const std::string& name : KnownModelNames()) {
    EXPECT_THAT(FindKnownModel(name)->Validate(), ::muster::testing::IsOk()) << name;
  }
}

TEST(KnownModels, AreFoundBehindTheirOwnersAndInAnyCase) {
  EXPECT_EQ(FindKnownModel("meta-llama/Llama-3.2-1B")->hidden_size, 2048);
  for (const auto& [given, nearest] :
       {std::pair{"llama-3-8x", "llama-3-8b"}, {"gpt2-128m", "gpt2-124m"}}) {
    EXPECT_THAT(FindKnownModel(given),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("did you mean ", nearest, "?"))));
  }
}

TEST(KnownModels, AreKnownWhateverTheContextAndTheVocabulary) {
  for (const std::string& name : KnownModelNames()) {
    DecoderConfig model = *FindKnownModel(name);
    model.context = 77;
    model.vocabulary = 256;
    // Llama 2 and Granite 7B are one model by their sizes.
    EXPECT_EQ(NameOf(model), name == "granite-7b-base" ? "llama-2-7b" : name);
    model.layers += 1;
    EXPECT_EQ(NameOf(model), name.substr(0, 4) == "gpt2" ? "GPT" : "decoder");
  }
  EXPECT_EQ(NameOf({}), "GPT");
}

TEST(KnownModels, DifferInWhatShapesDoNotShow) {
  EXPECT_EQ(DescribeParts(*FindKnownModel("gpt2-124m")), "");
  EXPECT_EQ(DescribeParts(*FindKnownModel("llama-3.2-1b")),
            "key heads 8, head size 64, rotary 500000 llama3 32 1 4 8192");
  EXPECT_EQ(DescribeParts(*FindKnownModel("qwen3-0.6b")),
            "key heads 8, head size 128, epsilon 1e-06, rotary 1e+06");
  EXPECT_EQ(DescribeParts(*FindKnownModel("granite-3.0-2b-base")),
            "key heads 8, head size 64, rotary 10000, multipliers 12 0.22 0.015625 0.125");
}

TEST(RotaryPositions, TurnEachPairSlowerThanTheOneBefore) {
  const std::vector<double> plain = RotaryPositions{.base = 10000}.Frequencies(8);
  ASSERT_EQ(plain.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(plain[i], std::pow(10.0, -double(i)), 1e-15);
  const RotaryPositions linear = {.scaling = RotaryPositions::Scaling::kLinear, .factor = 4};
  EXPECT_NEAR(linear.Frequencies(8)[1], 0.1 / 4, 1e-15);
}

// transformers 5.24 (modeling_rope_utils, in f32) has these numbers for Llama 3.2 1B: waves that
// stay as they are, those that go over, and those that are divided by 32.
TEST(RotaryPositions, OfLlama3AreScaledAsInTransformers) {
  const std::vector<double> got = FindKnownModel("llama-3.2-1b")->parts.rotary->Frequencies(64);
  const std::vector<double> plain = RotaryPositions{.base = 500000}.Frequencies(64);
  EXPECT_EQ(got[0], plain[0]);
  for (const auto& [i, expected] : {std::pair<size_t, double>{1, 0.663601279},
                                    {12, 0.00729266508},
                                    {14, 0.00321144611},
                                    {15, 0.00129054801},
                                    {16, 0.000429556705},
                                    {17, 9.70828623e-05},
                                    {18, 1.94616387e-05},
                                    {20, 8.57025589e-06},
                                    {31, 9.41830649e-08}}) {
    EXPECT_NEAR(got[i], expected, 1e-6 * expected) << i;
  }
}

TEST(DecoderConfig, CountsProductsAndAttentionOfAToken) {
  DecoderConfig config = {
      .layers = 2, .heads = 1, .hidden_size = 4, .context = 8, .vocabulary = 16};
  const double parameters = 16 * 4 + 2 * (12 * 16 + 13 * 4) + 2 * 4;
  EXPECT_EQ(config.flops_per_token(), 6 * parameters + 12 * 2 * 4 * 8);
  config.parts.tied = false;  // the embedding's table is read, not multiplied
  EXPECT_EQ(config.flops_per_token(), 6 * parameters + 12 * 2 * 4 * 8);
}

TEST(DecoderConfig, RefusesAModelWhoseParametersCannotBeCounted) {
  const DecoderConfig config = {.layers = 60'000, .heads = 1, .hidden_size = 1 << 24};
  EXPECT_THAT(config.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("hidden_size must be smaller, not 16777216, or layers fewer")));
}

TEST(DecoderConfig, RefusesPartsThatDoNotFit) {
  const auto refusal = [](DecoderConfig config) { return config.Validate(); };
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refusal({.heads = 6, .kv_heads = 4}),
              StatusIs(kWrong, HasSubstr("kv_heads must divide the heads: 6 is not a multiple of "
                                         "4; try 3")));
  EXPECT_THAT(refusal({.kv_heads = -1}), StatusIs(kWrong, HasSubstr("kv_heads must be between")));
  EXPECT_THAT(refusal({.head_size = 33, .parts = {.rotary = RotaryPositions{}}}),
              StatusIs(kWrong, HasSubstr("head_size must be even and at most 256")));
  EXPECT_THAT(refusal({.parts = {.rotary = RotaryPositions{.base = 0}}}),
              StatusIs(kWrong, HasSubstr("base and factor must be above 0, not 0 and 1")));
  EXPECT_THAT(
      refusal({.parts = {.rotary = RotaryPositions{.scaling = RotaryPositions::Scaling::kLlama3,
                                                   .low_factor = 4}}}),
      StatusIs(kWrong, HasSubstr("low_factor must be above 0 and below high_factor")));
}

}  // namespace
}  // namespace muster::plan
