#include "worker_runtime/plan/gpt_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/decoder.h"
#include "tests/support/status_matchers.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

TEST(NumParameters, AreAsManyAsTheModelDeclares) {
  for (const std::string& name : NamedGpts()) {
    const absl::StatusOr<DecoderConfig> config = NamedGpt(name);
    ASSERT_THAT(config, IsOk());
    ParameterStore store;
    EXPECT_THAT(Decoder::Create(*config, store), IsOk());
    EXPECT_EQ(store.num_elements(), config->num_parameters());
  }
}

TEST(NamedGpt, HasTheSizesOfGpt2) {
  const auto count = [](absl::string_view name) { return NamedGpt(name)->num_parameters(); };
  EXPECT_EQ(count("gpt2-124m"), 124'439'808);
  EXPECT_EQ(count("gpt2-350m"), 354'823'168);
  EXPECT_EQ(count("gpt2-774m"), 774'030'080);
  EXPECT_EQ(count("gpt2-1558m"), 1'557'611'200);
}

TEST(NamedGpt, NamesTheNearestOfAnUnknownName) {
  EXPECT_THAT(NamedGpt("gpt2-128m"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean gpt2-124m?")));
}

TEST(GptFlopsPerToken, CountMultipliedParametersAndAttention) {
  const DecoderConfig config = {
      .layers = 2, .heads = 1, .hidden_size = 4, .context = 8, .vocabulary = 16};
  const double parameters = 16 * 4 + 2 * (12 * 16 + 13 * 4) + 2 * 4;
  EXPECT_EQ(GptFlopsPerToken(config), 6 * parameters + 12 * 2 * 4 * 8);
}

TEST(DecoderConfig, RefusesAModelWhoseParametersCannotBeCounted) {
  const DecoderConfig config = {.layers = 60'000, .heads = 1, .hidden_size = 1 << 24};
  EXPECT_THAT(config.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("hidden_size must be smaller, not 16777216, or layers fewer")));
}

}  // namespace
}  // namespace muster::plan
