#include "worker_runtime/comm/launch_order.h"

#include <gtest/gtest.h>

namespace muster::comm {
namespace {

TEST(LaunchOrder, IsThatOfCallingAcrossCommunicators) {
  LaunchOrder order;
  const LaunchOrder::Place first = order.Take(), second = order.Take();
  EXPECT_TRUE(order.IsFirst(first));
  EXPECT_FALSE(order.IsFirst(second));
  order.Leave(first);
  EXPECT_TRUE(order.IsFirst(second));
}

// A communicator that fails leaves with everything that it had not started.
TEST(LaunchOrder, IsHeldUpByNobodyWhoHasLeft) {
  LaunchOrder order;
  const LaunchOrder::Place first = order.Take(), second = order.Take(), third = order.Take();
  order.Leave(second);
  EXPECT_FALSE(order.IsFirst(third));
  order.Leave(first);
  EXPECT_TRUE(order.IsFirst(third));
  order.Leave(third);
  EXPECT_TRUE(order.IsFirst(order.Take()));
}

TEST(LaunchOrder, IsLeftAtTheEndOfATurn) {
  LaunchOrder order;
  const LaunchOrder::Place first = order.Take();
  {
    const LaunchOrder::Turn turn(order);
    EXPECT_FALSE(turn.HasCome());
    order.Leave(first);
    EXPECT_TRUE(turn.HasCome());
    EXPECT_FALSE(order.IsFirst(order.Take()));
  }
  EXPECT_TRUE(order.IsFirst(2));
}

}  // namespace
}  // namespace muster::comm
