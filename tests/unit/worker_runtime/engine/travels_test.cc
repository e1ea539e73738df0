#include "worker_runtime/engine/travels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/worker_runtime/engine/small_rig.h"

namespace muster::engine {
namespace {

using ::muster::testing::ActionsOf;
using ::muster::testing::IsOk;
using ::muster::testing::OnRanks;
using ::muster::testing::SmallPlan;
using ::muster::testing::SmallRig;
using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;

struct Traveller {
  explicit Traveller(Communicator& world)
      : small(world, SmallPlan(SumMode::kFast, 1)),
        reduces(ActionsOf(small.rig().program, plan::ActionKind::kReduce)) {}

  SmallRig small;
  const std::vector<int> reduces;
  TrainingProgress progress{small.rig().plan.loss_scaling};
  Updater updater{small.rig(), progress};
  StagePasses passes{small.rig(), updater};
  Travels travels{small.rig(), passes.transfers()};
};

TEST(Travels, BringTheSumOfAllRanks) {
  OnRanks<int>(2, [](Communicator& world) {
    Traveller rank(world);
    rank.small.FillGradients(world.rank() + 1);
    for (const int action : rank.reduces) rank.travels.Start(action);
    for (const int action : rank.reduces) {
      const auto times = rank.travels.Await(action);
      EXPECT_THAT(times, IsOk());
      EXPECT_LE(times->wait_began, times->wait_ended);
      EXPECT_LE(times->since, times->finished);
      EXPECT_LE(times->finished, times->wait_ended);
    }
    EXPECT_THAT(rank.small.rig().held.all_summed_gradients().span<float>(), Each(Eq(3)));
    EXPECT_THAT(rank.travels.AwaitOnHost(), IsOk());
    EXPECT_GT(rank.travels.TimeOfReductions(), absl::ZeroDuration());
    rank.travels.Forget();
    EXPECT_EQ(rank.travels.TimeOfReductions(), absl::ZeroDuration());
    return 0;
  });
}

// The other rank never comes.
TEST(Travels, EndWithTheGroupAndAreWaitedFor) {
  OnRanks<int>(2, [](Communicator& world) {
    Traveller rank(world);
    if (world.rank() == 1) {
      world.Abort("rank 1: gone fishing");
      return 0;
    }
    rank.travels.Start(rank.reduces.front());
    const auto times = rank.travels.Await(rank.reduces.front());
    EXPECT_THAT(std::string(times.status().message()), HasSubstr("gone fishing"));
    EXPECT_THAT(std::string(rank.travels.AwaitRest().message()), HasSubstr("gone fishing"));
    EXPECT_THAT(rank.travels.AwaitRest(), IsOk()) << "nothing is under way any more";
    return 0;
  });
}

}  // namespace
}  // namespace muster::engine
