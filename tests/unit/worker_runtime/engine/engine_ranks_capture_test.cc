// Several ranks whose collectives run on streams of their devices, step by step and captured with
// the steps: the bits of the host, or one and the same end on all of them. An emulated GPU, on
// which a rank that launches what another calls alone fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/support/emulation/stream_communicators.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/steps_on_streams.h"
#include "tests/unit/worker_runtime/engine/two_streams.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

const StepsOfRank kSixSteps = [](int, ReaderTraining& on) { on.Steps(6); };

TEST(StepsOnStreams, AreCalledOneByOneUnlessTheRanksAreToldToCaptureThem) {
  uint64_t seed = 0;
  for (const char* preset : {"ddp", "zero-3"}) {
    SCOPED_TRACE(preset);
    Compare(
        2, Under(preset, PlanOfSteps(1), 2), 0, [](int, ReaderTraining& on) { on.Steps(4); },
        ++seed, DType::kF32, Told{});
  }
}

TEST(StepsOnStreams, AreCalledOneByOneWhereSumsAreOrdered) {
  Compare(
      2, Under("zero-2", PlanOfSteps(2, SumMode::kOrdered), 2), 0,
      [](int, ReaderTraining& on) { on.Steps(4); }, 11);
}

// Groups are of half of the ranks.
TEST(StepsCapturedByRanks, HaveTheBitsOfTheHostUnderEveryPreset) {
  uint64_t seed = 20;
  for (const std::string& preset : DataParallelPresets()) {
    SCOPED_TRACE(preset);
    const bool has_groups = Under(preset, PlanOfSteps(1), 4) != Under(preset, PlanOfSteps(1), 2);
    const int ranks = has_groups ? 4 : 2;
    Compare(
        ranks, Under(preset, PlanOfSteps(1), ranks), 2,
        [](int, ReaderTraining& on) { on.Steps(4); }, ++seed);
  }
}

TEST(StepsCapturedByRanks, HaveTheBitsOfTheHostInWhateverOrderTheirWorkRuns) {
  const Plan plan = Under("zero-3", PlanOfSteps(1), 2);
  for (const uint64_t seed : {41, 42}) Compare(2, plan, 4, kSixSteps, seed);
  Compare(2, plan, 4, kSixSteps, 45, DType::kBf16);
}

TEST(StepsCapturedByRanks, HaveTheBitsOfTheHostWhereTensorRanksShareLayers) {
  uint64_t seed = 46;
  for (const char* preset : {"ddp", "zero-3"}) {
    SCOPED_TRACE(preset);
    Plan plan = Under(preset, PlanOfSteps(2), 2);
    plan.tensor_ranks = 2;
    Compare(
        4, plan, 2, [](int, ReaderTraining& on) { on.Steps(4); }, ++seed);
  }
}

TEST(StepsOnStreams, HaveTheBitsOfTheHostWhereTensorRanksAddUpInOrder) {
  Plan plan = PlanOfSteps(2, SumMode::kOrdered);
  plan.tensor_ranks = 2;
  Compare(
      2, plan, 0, [](int, ReaderTraining& on) { on.Steps(3); }, 49);
}

TEST(StepsCapturedByRanks, HaveTheBitsOfTheHostInAPipeline) {
  Plan plan = PlanOfSteps(4);
  plan.stages = 2;
  Compare(
      4, plan, 2, [](int, ReaderTraining& on) { on.Steps(4); }, 51);
}

TEST(StepsCapturedByRanks, HaveTheBitsOfTheHostWhereStagesPassOnSeveralActivations) {
  Plan plan = PlanOfSteps(4);
  plan.stages = 2;
  for (const int first_of_stage_1 : {4, 7}) {
    plan.unit_costs = TwoStreams::CostsForACutAt(first_of_stage_1);
    Compare(4, plan, 2, [](int, ReaderTraining& on) { on.Steps(4); }, 52, DType::kF32,
            {.captures = true, .make_units = TwoStreams::MakeUnits()});
  }
}

TEST(StepsCapturedByRanks, FollowTheLossScaleAndAreSkippedByAll) {
  Plan plan = PlanOfSteps(1);
  plan.loss_scaling = kTooLargeAtFirst;
  Compare(
      2, plan, 10, [](int, ReaderTraining& on) { on.Steps(12); }, 61);
}

TEST(StepsCapturedByRanks, AreCapturedAnewForBatchesOfAnotherSize) {
  Compare(
      2, PlanOfSteps(2), 4,
      [](int, ReaderTraining& on) {
        on.Steps(4);
        on.Steps(4, kHalf);
      },
      71);
}

// The others, who could launch, do not.
TEST(StepsCapturedByRanks, AreCalledOneByOneByAllWhereOneRankHasBatchesOfAnotherSize) {
  Compare(
      3, PlanOfSteps(1), 4,
      [](int rank, ReaderTraining& on) {
        on.Steps(4);
        on.Steps(4, rank == 1 ? kHalf : kWhole);
      },
      72);
}

TEST(StepsCapturedByRanks, AreCapturedAnewByAllWhereOneRankTookMemoryBetweenThem) {
  Compare(
      2, PlanOfSteps(1), 4,
      [](int rank, ReaderTraining& on) {
        on.Steps(4);
        if (rank == 1) on.engine->pool().Trim();
        on.Steps(4);
      },
      73);
}

TEST(StepsCapturedByRanks, AreNoneIfOneRankWantsNone) {
  Compare(2, PlanOfSteps(1), 0, [](int, ReaderTraining& on) { on.Steps(5); }, 81, DType::kF32,
          {.captures = true, .refuses = 1});
}

// All capture, and learn only then that one could not.
TEST(StepsCapturedByRanks, AreNoneIfOneRankCannotCaptureWhatItsModelBrings) {
  Compare(
      2, PlanOfSteps(1), 0,
      [](int rank, ReaderTraining& on) {
        const std::vector<int32_t> own = {1, 2, 3};
        if (rank == 1) on.before_forward = [&own](Tape& tape) { tape.Bring(own); };
        on.Steps(6);
        on.before_forward = [](Tape&) {};
      },
      82);
}

// One rank aborts between the agreement and the launch: the other has launched, and this one never
// will.
TEST(StepsCapturedByRanks, EndOnAllRanksWhereOneAbortsBeforeItsLaunch) {
  EmulatedCuda cuda({.seed = 91, .work_per_question = kWorkPerQuestion});
  {
    auto communicators = MakeStreamCommunicators(cuda, {.size = 2});
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Communicator& world = *communicators[rank];
        const std::unique_ptr<Device> device = MakeLateDevice(cuda);
        ReaderTraining on(world, PlanOfSteps(1), device.get(), DType::kF32, UnitsOf(kSmallGpt),
                          {.captures_steps = true});
        on.Steps(4);
        if (rank == 1) {
          on.engine->OnPhase([&world](int64_t, Phase phase) {
            if (phase == Phase::kForward) world.Abort("the GPU is on fire");
          });
        }
        const auto reader = on.engine->Read(on.text, kWhole);
        EXPECT_THAT(on.engine->Step(**reader),
                    StatusIs(absl::StatusCode::kAborted, HasSubstr("the GPU is on fire")));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
}

}  // namespace
}  // namespace muster::testing
