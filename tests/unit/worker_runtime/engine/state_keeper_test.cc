#include "worker_runtime/engine/state_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/support/files.h"
#include "tests/unit/worker_runtime/engine/small_rig.h"

namespace muster::engine {
namespace {

using ::muster::testing::Alone;
using ::muster::testing::IsOk;
using ::muster::testing::OnRanks;
using ::muster::testing::SmallPlan;
using ::muster::testing::SmallRig;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::testing::HasSubstr;

struct Kept {
  explicit Kept(Communicator& world, uint64_t seed = 0, CheckpointFence fence = {})
      : small(world, PlanOf(seed)),
        keeper(small.rig(), progress, updater, alone, listeners, std::move(fence)) {}

  static Plan PlanOf(uint64_t seed) {
    Plan plan = SmallPlan(SumMode::kOrdered, 1);
    plan.seed = seed;
    return plan;
  }
  std::string Hash() { return keeper.HashParameters().value_or("none"); }

  SmallRig small;
  TrainingProgress progress{small.rig().plan.loss_scaling};
  StepListeners listeners{.progress = progress};
  Updater updater{small.rig(), progress};
  UnitsAlone alone{small.rig()};
  StateKeeper keeper;
};

TEST(StateKeeper, LoadsWhatAnotherHasSaved) {
  Alone([](Communicator& world) {
    TemporaryDirectory directory;
    Kept from(world, 1), to(world, 2);
    from.progress.step = 9;
    ASSERT_THAT(from.keeper.Save(directory.File("saved"), {{"by", "me"}}), IsOk());
    EXPECT_NE(to.Hash(), from.Hash());
    to.progress.is_torn = true;
    const auto loaded = to.keeper.Load(directory.File("saved"));
    ASSERT_THAT(loaded, IsOk());
    EXPECT_EQ(loaded->metadata.at("by"), "me");
    EXPECT_EQ(to.Hash(), from.Hash());
    EXPECT_EQ(to.progress.step, 9);
    EXPECT_FALSE(to.progress.is_torn);
  });
}

TEST(StateKeeper, AsksTheFenceBeforeASaveCounts) {
  Alone([](Communicator& world) {
    TemporaryDirectory directory;
    int64_t asked = 0;
    Kept from(world, 0, {.commit = [&](int64_t step) {
                asked = step;
                return absl::AbortedError("another round has it");
              }});
    from.progress.step = 4;
    EXPECT_THAT(std::string(from.keeper.Save(directory.File("saved"), {}).message()),
                HasSubstr("another round has it"));
    EXPECT_EQ(asked, 4);
    EXPECT_THAT(from.keeper.Load(directory.File("saved")), StatusIs(absl::StatusCode::kNotFound));
  });
}

TEST(StateKeeper, GivesItsCopyToThoseThatHaveNone) {
  std::string hash;
  std::unique_ptr<StateCopy> copy;
  Alone([&](Communicator& world) {
    Kept from(world, 1);
    from.progress.step = 5;
    auto taken = from.keeper.Copy();
    ASSERT_THAT(taken, IsOk());
    copy = *std::move(taken);
    hash = from.Hash();
  });
  OnRanks<int>(2, [&](Communicator& world) {
    Kept to(world, 2);
    const auto restored = to.keeper.Restore(world.rank() == 1 ? copy.get() : nullptr);
    EXPECT_THAT(restored, IsOk());
    EXPECT_EQ(restored->rank, 1);
    EXPECT_EQ(restored->step, 5);
    EXPECT_EQ(to.Hash(), hash);
    return 0;
  });
}

TEST(StateKeeper, CopiesNothingThatIsOfNoStep) {
  Alone([](Communicator& world) {
    Kept from(world);
    from.progress.step = 3;
    from.progress.is_torn = true;
    EXPECT_THAT(std::string(from.keeper.Copy().status().message()),
                HasSubstr("what failed after step 3 had begun to change"));
  });
}

}  // namespace
}  // namespace muster::engine
