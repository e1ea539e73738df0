#include "worker_runtime/engine/captured_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/unit/worker_runtime/engine/small_rig.h"

namespace muster::engine {
namespace {

using ::muster::testing::Alone;
using ::muster::testing::EmulatedCuda;
using ::muster::testing::IsOk;
using ::muster::testing::MakeLateDevice;
using ::muster::testing::SmallPlan;
using ::muster::testing::SmallRig;
using ::testing::ElementsAre;

struct Capturing {
  Capturing(Communicator& world, const Device* device, std::optional<bool> wanted = std::nullopt)
      : small(world, SmallPlan(SumMode::kOrdered, 1), device),
        captured(small.rig(), feed, runner, listeners, wanted) {}

  // How often the model was called in a step.
  int Step(BatchReader& reader) {
    int calls = 0;
    EXPECT_THAT(feed.Begin(reader), IsOk());
    runner.Begin(MonoNow());
    EXPECT_THAT(
        captured.Put(
            [&](Tape& tape, const plan::StagePass& pass, absl::Span<const Activation> received) {
              ++calls;
              return small.Run(feed, reader, tape, pass, received, runner.is_capturing());
            },
            /*from_reader=*/true),
        IsOk());
    EXPECT_THAT(runner.End(), IsOk());
    return calls;
  }
  std::vector<int> Steps(int steps) {
    std::vector<int> calls;
    const auto reader = small.Read(progress.step);
    for (int i = 0; i < steps; ++i) calls.push_back(Step(*reader));
    return calls;
  }

  SmallRig small;
  TrainingProgress progress{small.rig().plan.loss_scaling};
  StepListeners listeners{.progress = progress};
  Updater updater{small.rig(), progress};
  BatchFeed feed{small.rig(), progress};
  StepRunner runner{small.rig(), updater, listeners};
  CapturedSteps captured;
};

TEST(CapturedStepsOfAFeed, AreLaunchedOnceOneWasCaptured) {
  EmulatedCuda cuda({.seed = 31});
  Alone([&](Communicator& world) {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    Capturing on(world, device.get());
    EXPECT_THAT(on.Steps(5), ElementsAre(1, 1, 1, 0, 0));
    EXPECT_EQ(on.progress.step, 5);
    on.captured.Forget();
    EXPECT_THAT(on.Steps(3), ElementsAre(1, 1, 0)) << "the memory of such a step is there already";
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
}

TEST(CapturedStepsOfAFeed, AreNoneWhereNoneAreWanted) {
  EmulatedCuda cuda({.seed = 32});
  Alone([&](Communicator& world) {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    Capturing on(world, device.get(), /*wanted=*/false);
    EXPECT_THAT(on.Steps(5), ElementsAre(1, 1, 1, 1, 1));
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
}

TEST(CapturedStepsOfAFeed, AreNoneOnTheHost) {
  Alone([](Communicator& world) {
    Capturing on(world, nullptr);
    EXPECT_THAT(on.Steps(5), ElementsAre(1, 1, 1, 1, 1));
  });
}

}  // namespace
}  // namespace muster::engine
