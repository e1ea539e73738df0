#include "worker_runtime/engine/units_alone.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/worker_runtime/engine/small_rig.h"

namespace muster::engine {
namespace {

using ::muster::testing::Alone;
using ::muster::testing::IsOk;
using ::muster::testing::OnRanks;
using ::muster::testing::SmallPlan;
using ::muster::testing::SmallRig;
using ::muster::testing::Under;
using ::testing::HasSubstr;

Plan ShardedPlan() {
  Plan plan = Under("zero-3", SmallPlan(SumMode::kFast, 1), 2);
  plan.gathering.persistence_threshold = 0;  // nothing is whole
  return plan;
}

std::vector<float> ValuesOf(const Parameter& parameter) {
  const auto values = parameter.value().span<float>();
  return {values.begin(), values.end()};
}

TEST(UnitsAlone, AreWholeWhileTheyAreUsed) {
  std::vector<std::vector<float>> expected;
  Alone([&](Communicator& world) {
    SmallRig small(world, SmallPlan(SumMode::kFast, 1));
    for (const auto& parameter : small.store.parameters()) expected.push_back(ValuesOf(*parameter));
  });
  OnRanks<int>(2, [&](Communicator& world) {
    SmallRig small(world, ShardedPlan());
    UnitsAlone alone(small.rig());
    for (const auto& parameter : small.store.parameters()) {
      alone.Enter(parameter->unit());
      EXPECT_EQ(ValuesOf(*parameter), expected[parameter->index()]) << parameter->name();
    }
    EXPECT_THAT(alone.Leave(), IsOk());
    return 0;
  });
}

TEST(UnitsAlone, HaveMemoryWhateverFailsAndSayItInTheEnd) {
  OnRanks<int>(2, [](Communicator& world) {
    SmallRig small(world, ShardedPlan());
    UnitsAlone alone(small.rig());
    if (world.rank() == 1) {
      small.rig().Abort("rank 1: gone fishing");
      return 0;
    }
    const Parameter& parameter = *small.store.parameters()[0];
    alone.Enter(parameter.unit());
    EXPECT_EQ(parameter.value().shape(), parameter.shape());
    EXPECT_THAT(std::string(alone.Leave().message()), HasSubstr("gone fishing"));
    EXPECT_THAT(alone.Leave(), IsOk()) << "it was said";
    return 0;
  });
}

}  // namespace
}  // namespace muster::engine
