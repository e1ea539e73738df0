// Engines that register what their collectives work in: the bits of the host and of those that do not, under every
// preset, over a back end that fails whatever NCCL leaves undefined.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker_runtime/engine/steps_on_streams.h"

namespace muster::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr Told kToRegister = {.registers = true};

const StepsOfRank kThreeSteps = [](int, ReaderTraining& on) { on.Steps(3); };

// Every collective on the device is in registered memory, between steps too: the hash gathers units.
void CompareRegistered(int ranks, const Plan& plan, uint64_t seed,
                       const StepsOfRank& train = kThreeSteps, DType dtype = DType::kF32) {
  StreamFigures figures;
  Compare(ranks, plan, 0, train, seed, dtype, kToRegister, &figures);
  EXPECT_GT(figures.registered_calls, 0);
  EXPECT_EQ(figures.other_calls, 0);
}

TEST(RegisteredBuffers, AreNoneUnlessTheRanksAreToldTo) {
  StreamFigures figures;
  Compare(2, Under("zero-3", PlanOfSteps(1), 2), 0, kThreeSteps, 1, DType::kF32, {}, &figures);
  EXPECT_EQ(figures.registered_calls, 0);
  EXPECT_GT(figures.other_calls, 0);
}

TEST(RegisteredBuffers, AreAllThatCollectivesWorkInUnderEveryPreset) {
  uint64_t seed = 100;
  for (const std::string& preset : DataParallelPresets()) {
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(absl::StrCat(preset, " on ", ranks, " ranks"));
      CompareRegistered(ranks, Under(preset, PlanOfSteps(1), ranks), ++seed);
    }
  }
}

TEST(RegisteredBuffers, AreAllThatCollectivesWorkInWithSeveralMicroBatches) {
  uint64_t seed = 200;
  for (const std::string& preset : DataParallelPresets()) {
    SCOPED_TRACE(preset);
    Plan plan = Under(preset, PlanOfSteps(2), 4);
    plan.gradient_reduction = GradientReduction::kOnce;
    CompareRegistered(4, plan, ++seed);
    plan.gradient_reduction = GradientReduction::kEachMicroBatch;
    CompareRegistered(4, plan, ++seed);
  }
}

// What has been rounded travels from a buffer of its own.
TEST(RegisteredBuffers, AreTheRoundedCopiesOfGradientsToo) {
  uint64_t seed = 300;
  for (const std::string& preset : DataParallelPresets()) {
    SCOPED_TRACE(preset);
    Plan plan = Under(preset, PlanOfSteps(1), 4);
    plan.reduce_dtype = DType::kBf16;
    StreamFigures figures;
    const auto registered =
        OnStreams(4, plan, kThreeSteps, ++seed, DType::kF32, kToRegister, &figures);
    const auto plain = OnStreams(4, plan, kThreeSteps, ++seed, DType::kF32, {});
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(registered[rank].hash, plain[rank].hash);
    EXPECT_EQ(figures.other_calls, 0);
  }
}

// Of them the backend adds none in place; what is gathered is registered.
TEST(RegisteredBuffers, HaveTheBitsOfTheHostWhereSumsAreOrdered) {
  uint64_t seed = 400;
  for (const char* preset : {"zero-1", "zero-3"}) {
    SCOPED_TRACE(preset);
    CompareRegistered(4, Under(preset, PlanOfSteps(2, SumMode::kOrdered), 4), ++seed);
  }
}

TEST(RegisteredBuffers, AreThoseOfCapturedStepsToo) {
  uint64_t seed = 500;
  for (const std::string& preset : DataParallelPresets()) {
    SCOPED_TRACE(preset);
    StreamFigures figures;
    Compare(
        4, Under(preset, PlanOfSteps(1), 4), 3, [](int, ReaderTraining& on) { on.Steps(5); },
        ++seed, DType::kF32, {.captures = true, .registers = true}, &figures);
    EXPECT_GT(figures.registered_calls, 0);
    EXPECT_EQ(figures.other_calls, 0);
  }
}

// The world's are not: between steps its memory is one rank's own and the others' for a moment.
TEST(RegisteredBuffers, AreThoseOfStagesInAPipeline) {
  for (const char* preset : {"ddp", "zero-1", "zero-2"}) {
    SCOPED_TRACE(preset);
    for (const int stages : {2, 4}) {
      Plan plan = Under(preset, PlanOfSteps(4), 4 / stages);
      plan.stages = stages;
      for (const bool captures : {false, true}) {
        StreamFigures figures;
        Compare(
            4, plan, captures ? 2 : 0,
            [](int, ReaderTraining& on) {
              on.Steps(2);
              on.Hash();
              on.Steps(2);
            },
            601, DType::kF32, {.captures = captures, .registers = true}, &figures);
        EXPECT_EQ(figures.registered_calls > 0, stages == 2);
      }
    }
  }
}

TEST(RegisteredBuffers, AreNoneIfTheRanksAreToldAfterTheirFirstStep) {
  StreamFigures figures;
  Compare(
      2, PlanOfSteps(1), 0,
      [](int, ReaderTraining& on) {
        on.Steps(1);
        on.engine->RegisterBuffers(true);
        on.Steps(2);
      },
      701, DType::kF32, {}, &figures);
  EXPECT_EQ(figures.registered_calls, 0);
}

}  // namespace
}  // namespace muster::testing
