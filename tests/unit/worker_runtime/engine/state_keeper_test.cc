#include "worker_runtime/engine/state_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/unit/worker_runtime/engine/kept_state.h"

namespace muster::engine {
namespace {

using ::muster::testing::Alone;
using ::muster::testing::IsOk;
using ::muster::testing::Kept;
using ::muster::testing::OnRanks;
using ::testing::HasSubstr;

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
