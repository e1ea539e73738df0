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
    EXPECT_EQ(NumParametersOf(*FindKnownModel(name)), parameters) << name;
  }
}

TEST(KnownModels, AreFoundBehindTheirOwnersAndInAnyCase) {
  EXPECT_EQ(FindKnownModel("meta-llama/Llama-3.2-1B")->name, "llama-3.2-1b");
  EXPECT_THAT(FindKnownModel("llama-3-8x"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean llama-3-8b?")));
}

TEST(KnownModels, AreCutIntoStagesThatHoldEachUnitOnce) {
  const KnownModel model = *FindKnownModel("llama-3.2-1b");
  const std::vector<StageInfo> stages =
      TraceStages(model, {.sequence = 128, .dtype = DType::kBf16}, {0, 5, 9, 13});
  ASSERT_EQ(stages.size(), 4u);
  EXPECT_EQ(stages[0].blocks.begin, 0);
  for (size_t s = 1; s < 4; ++s) EXPECT_EQ(stages[s].blocks.begin, stages[s - 1].blocks.end);
  EXPECT_EQ(stages[3].borrowed, std::vector<int>{0}) << "the head is tied";
}

TEST(KnownModels, KeepLessWhereActivationsAreComputedAgain) {
  const KnownModel model = *FindKnownModel("qwen2.5-7b");
  TracedBatch batch = {.sequence = 1024, .dtype = DType::kBf16};
  const int64_t kept = TraceStages(model, batch, {0})[0].trace.kept_bytes;
  batch.recompute.kind = Recompute::Kind::kSelective;
  const int64_t selective = TraceStages(model, batch, {0})[0].trace.kept_bytes;
  batch.recompute.kind = Recompute::Kind::kFull;
  const int64_t full = TraceStages(model, batch, {0})[0].trace.kept_bytes;
  EXPECT_LT(selective, kept);
  EXPECT_LT(full, kept / 10);
}

}  // namespace
}  // namespace muster::plan
