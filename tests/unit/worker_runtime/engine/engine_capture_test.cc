// Steps that are captured and launched as one piece of work, on an emulated GPU: the bits of the
// host, which captures none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/reader_training.h"

namespace muster::testing {
namespace {

// Does `train` on the host and on a device, which launches `launches` graphs; both end alike.
void Compare(const Plan& plan, int64_t launches, const std::function<void(ReaderTraining&)>& train,
             uint64_t seed = 1, DType dtype = DType::kF32, const EngineOptions& options = {}) {
  EmulatedCuda cuda({.seed = seed});
  OnRanks<int>(1, [&](Communicator& world) {
    CountingCuda counting(cuda);
    const std::unique_ptr<Device> device = MakeLateDevice(counting);
    ReaderTraining host(world, plan, nullptr, dtype);
    ReaderTraining late(world, plan, device.get(), dtype, UnitsOf(kSmallGpt), options);
    train(host);
    train(late);
    EXPECT_EQ(late.Hash(), host.Hash());
    EXPECT_EQ(late.rates, host.rates);
    EXPECT_EQ(late.scales, host.scales);
    EXPECT_EQ(late.skipped, host.skipped);
    EXPECT_LE(LargestRelativeDifference(late.losses, host.losses), 1e-12);
    EXPECT_EQ(counting.since_mark().graph_launches, launches);
    return 0;
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
}

Plan PlanOfSteps(int64_t accumulation) {
  Plan plan = SmallPlan(SumMode::kOrdered, accumulation);
  plan.learning_rate = {.kind = LearningRateSchedule::Kind::kCosine,
                        .peak = 3e-3,
                        .floor = 1e-4,
                        .warmup_steps = 2,
                        .total_steps = 8};
  return plan;
}

TEST(CapturedSteps, HaveTheBitsOfTheHostUnderEveryPreset) {
  uint64_t seed = 0;
  for (const std::string& preset : DataParallelPresets()) {
    SCOPED_TRACE(preset);
    Compare(
        Under(preset, PlanOfSteps(3), 1), 6, [](ReaderTraining& on) { on.Steps(8); }, ++seed);
  }
}

TEST(CapturedSteps, HaveTheBitsOfTheHostInWhateverOrderTheirWorkRuns) {
  Plan plan = PlanOfSteps(2);
  plan.update = {.kind = UpdateRule::Kind::kSgd, .momentum = 0.9};
  plan.max_gradient_norm = 0.5;
  for (const uint64_t seed : {11, 12, 13, 14}) {
    Compare(
        plan, 6, [](ReaderTraining& on) { on.Steps(8); }, seed);
  }
  Compare(
      plan, 6, [](ReaderTraining& on) { on.Steps(8); }, 15, DType::kBf16);
}

TEST(CapturedSteps, FollowTheLossScaleAndAreSkipped) {
  Plan plan = PlanOfSteps(1);
  plan.loss_scaling = kTooLargeAtFirst;
  Compare(plan, 18, [](ReaderTraining& on) {
    on.Steps(20);
    EXPECT_GT(on.skipped, 0);
    EXPECT_LT(on.skipped, 17);
  });
}

TEST(CapturedSteps, AreCapturedAnewForBatchesOfAnotherSize) {
  Compare(PlanOfSteps(2), 4, [](ReaderTraining& on) {
    on.Steps(4);
    on.Steps(4, kHalf);
  });
}

TEST(CapturedSteps, GoOnAfterWorkThatTookMemoryBetweenThem) {
  Compare(PlanOfSteps(1), 4, [](ReaderTraining& on) {
    on.Steps(4);
    on.engine->pool().Trim();  // the memory that the captured work is on
    on.Steps(4);
  });
}

TEST(CapturedSteps, GoOnFromACheckpoint) {
  Compare(PlanOfSteps(2), 7, [](ReaderTraining& on) {
    TemporaryDirectory directory;
    on.Steps(4);
    EXPECT_THAT(on.engine->Save(directory.File("saved"), {}), IsOk());
    on.Steps(2);
    EXPECT_THAT(on.engine->Load(directory.File("saved")), IsOk());
    on.Steps(3);
  });
}

// What a model brings to the device itself differs from step to step.
TEST(CapturedSteps, AreNoneOfAModelThatBringsMoreThanItsBatch) {
  Compare(PlanOfSteps(1), 0, [](ReaderTraining& on) {
    const std::vector<int32_t> own = {1, 2, 3};
    on.before_forward = [&own](Tape& tape) { tape.Bring(own); };
    on.Steps(5);
    on.before_forward = [](Tape&) {};
  });
}

TEST(CapturedSteps, AreNoneIfTheProgramWantsNone) {
  Compare(PlanOfSteps(1), 0, [](ReaderTraining& on) { on.Steps(5); }, 1, DType::kF32,
          {.captures_steps = false});
}

TEST(CapturedSteps, AreOneLaunchAFewCopiesAndOneWait) {
  EmulatedCuda cuda({.seed = 21});
  OnRanks<int>(1, [&](Communicator& world) {
    CountingCuda counting(cuda);
    const std::unique_ptr<Device> device = MakeLateDevice(counting);
    ReaderTraining on(world, PlanOfSteps(2), device.get());
    on.Steps(4);
    counting.Mark();
    const auto reader = on.engine->Read(on.text, kWhole);
    for (int i = 0; i < 3; ++i) EXPECT_THAT(on.engine->Step(**reader), IsOk());
    const CudaCalls calls = counting.since_mark();
    EXPECT_EQ(calls.graph_launches, 3);
    EXPECT_EQ(calls.host_waits, 3);
    EXPECT_EQ(calls.allocations + calls.frees + calls.made, 0);
    EXPECT_EQ(calls.copies,
              3 * (2 * 2 + 3));  // ids and targets of two batches; numbers, tokens, record
    return 0;
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
}

}  // namespace
}  // namespace muster::testing
