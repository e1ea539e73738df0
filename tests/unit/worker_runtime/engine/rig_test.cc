#include "worker_runtime/engine/rig.h"

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
using ::muster::testing::StatusIs;
using ::muster::testing::Under;
using ::testing::HasSubstr;

TEST(Rig, IsRefusedOnAllRanksWhereOneHasAnotherPlan) {
  const auto ends = OnRanks<absl::Status>(2, [](Communicator& world) {
    Plan plan = SmallPlan(SumMode::kFast, 1);
    plan.seed = world.rank();
    return SmallRig(world, plan).made.status();
  });
  for (const absl::Status& end : ends) {
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(std::string(end.message()), HasSubstr("seed"));
  }
}

TEST(Rig, EndsAllItsGroupsWithOneReason) {
  const auto ends = OnRanks<std::vector<absl::Status>>(4, [](Communicator& world) {
    SmallRig small(world, Under("hybrid-shard", SmallPlan(SumMode::kFast, 1), 4));
    Rig& rig = small.rig();
    EXPECT_GT(rig.Groups().size(), 1);
    EXPECT_EQ(rig.Groups()[0], &world);
    if (world.rank() == 0) rig.Abort("rank 0: out of paper");
    std::vector<absl::Status> ends;
    if (world.rank() != 0) ends.push_back(world.Barrier({}).Wait());
    return ends;
  });
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_THAT(ends[rank][0], StatusIs(absl::StatusCode::kAborted));
    EXPECT_THAT(std::string(ends[rank][0].message()), HasSubstr("out of paper"));
  }
}

std::vector<int> BucketsInOrder(const plan::Program& program) {
  std::vector<int> first;
  for (const int action : ActionsOf(program, plan::ActionKind::kReduce)) {
    first.push_back(program.buckets[plan::BucketOf(program.actions[action])].first_parameter);
  }
  return first;
}

struct Adopted {
  absl::StatusOr<bool> differs = false;
  std::vector<int> before;
  std::vector<int> after;
};

// Each rank has seen the order that it has by default, turned round on those of `turned`.
std::vector<Adopted> Adopt(const std::vector<int>& turned) {
  return OnRanks<Adopted>(2, [&](Communicator& world) {
    Plan plan = SmallPlan(SumMode::kFast, 1);
    plan.buckets.first_bytes = 4096;
    plan.buckets.bytes_max = 8192;
    SmallRig small(world, plan);
    Rig& rig = small.rig();
    rig.set_up.learns_order = true;
    Adopted adopted = {.before = BucketsInOrder(rig.program)};
    std::vector<int> seen = rig.set_up.stages[0].trace.gradients;
    if (std::count(turned.begin(), turned.end(), world.rank()) > 0) {
      std::reverse(seen.begin(), seen.end());
    }
    adopted.differs = AdoptOrder(rig, seen);
    EXPECT_FALSE(rig.set_up.learns_order);
    rig.Recompile();
    adopted.after = BucketsInOrder(rig.program);
    return adopted;
  });
}

TEST(Rig, ReducesInTheOrderThatAllRanksHaveSeen) {
  for (const Adopted& rank : Adopt({0, 1})) {
    ASSERT_THAT(rank.differs, IsOk());
    EXPECT_TRUE(*rank.differs);
    EXPECT_GT(rank.before.size(), 2);
    EXPECT_NE(rank.after, rank.before);
  }
}

TEST(Rig, KeepsItsOrderWhereRanksHaveSeenOthersOrTheSame) {
  for (const std::vector<int>& turned : {std::vector<int>{1}, std::vector<int>{}}) {
    for (const Adopted& rank : Adopt(turned)) {
      ASSERT_THAT(rank.differs, IsOk());
      EXPECT_FALSE(*rank.differs);
      EXPECT_EQ(rank.after, rank.before);
    }
  }
}

}  // namespace
}  // namespace muster::engine
