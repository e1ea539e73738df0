// Snapshots of an engine on a device, which the host has sent a step that fails behind its back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/support/emulation/stream_communicators.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/reader_training.h"

namespace muster::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// One of the two trains on a device, in turn.
TEST(SnapshotOfADevice, IsRestoredOnTheHostAndTheHostsOnADevice) {
  Plan plan = SmallPlan(SumMode::kOrdered, 2);
  plan.update.stochastic_rounding = true;
  const std::string whole = Train(2, plan, 6, DType::kBf16).hash;
  EmulatedCuda cuda({.seed = 6});
  for (const bool first_on_host : {true, false}) {
    std::vector<EngineSnapshot> taken(2);
    const auto train = [&](bool on_host, bool restores) {
      return OnRanks<std::string>(2, [&](Communicator& world) {
        const std::unique_ptr<Device> late = MakeLateDevice(cuda);
        auto training =
            SmallTraining::Create(world, plan, DType::kBf16, on_host ? nullptr : late.get());
        Engine& engine = (*training)->engine();
        if (restores) {
          EXPECT_THAT(engine.Restore(taken[world.rank()]), IsOk());
        }
        EXPECT_THAT((*training)->Steps(3), IsOk());
        if (!restores && world.rank() == 1) taken[1] = *engine.TakeSnapshot();
        return engine.ParameterHash().value_or("none");
      });
    };
    train(first_on_host, false);
    EXPECT_THAT(train(!first_on_host, true), Each(whole));
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
}

struct AfterALoss {
  absl::Status failure;
  absl::StatusOr<EngineSnapshot> snapshot = absl::UnknownError("not taken");
  std::string hash_before;
  std::string hash_after;  // of what the snapshot gives
};

// What rank 0 of two has, whose peer never sends its part of the third step. Its host has come to
// the update when it learns of that.
AfterALoss LosePeerInAStep(bool waits_before_update) {
  EmulatedCuda cuda({.seed = 3, .work_per_question = 64});
  AfterALoss result;
  {
    auto communicators = MakeStreamCommunicators(cuda, {.size = 2});
    std::promise<void> loss;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Communicator& world = *communicators[rank];
        const std::unique_ptr<Device> device = MakeLateDevice(cuda);
        auto training =
            SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1), DType::kF32, device.get(),
                                  {.waits_before_updates = waits_before_update});
        Engine& engine = (*training)->engine();
        EXPECT_THAT((*training)->Steps(2), IsOk());
        const std::string before = engine.ParameterHash().value_or("none");
        if (rank == 1) {
          (*training)->before_forward = [&](int64_t) {
            loss.get_future().wait();
            return absl::UnavailableError("this is the end");
          };
          EXPECT_THAT((*training)->Step(), StatusIs(absl::StatusCode::kUnavailable));
          return;
        }
        engine.OnPhase([&](int64_t, Phase phase) {
          if (phase != Phase::kUpdate) return;
          world.Abort("rank 1 has died");
          loss.set_value();
        });
        result.failure = (*training)->Step().status();
        result.snapshot = engine.TakeSnapshot();
        result.hash_before = before;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
  if (!result.snapshot.ok()) return result;
  result.hash_after = OnRanks<std::string>(1, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1));
    EXPECT_THAT((*training)->engine().Restore(*result.snapshot), IsOk());
    return (*training)->engine().ParameterHash().value_or("none");
  })[0];
  return result;
}

TEST(SnapshotOfADevice, IsRefusedWhereTheUpdateWasSentBehindWhatFailed) {
  const AfterALoss loss = LosePeerInAStep(false);
  EXPECT_THAT(loss.failure, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 has died")));
  if (loss.snapshot.ok()) {  // the host learnt of it first, and has sent no update
    EXPECT_EQ(loss.snapshot->step(), 2);
    EXPECT_EQ(loss.hash_after, loss.hash_before);
    return;
  }
  EXPECT_THAT(loss.snapshot.status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the state is of no step: what failed after step 2")));
}

TEST(SnapshotOfADevice, IsTheStateBeforeTheStepWhereTheUpdateWaitsForItsGradients) {
  const AfterALoss loss = LosePeerInAStep(true);
  EXPECT_THAT(loss.failure, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 has died")));
  ASSERT_THAT(loss.snapshot, IsOk());
  EXPECT_EQ(loss.snapshot->step(), 2);
  EXPECT_EQ(loss.hash_after, loss.hash_before);
}

}  // namespace
}  // namespace muster::testing
