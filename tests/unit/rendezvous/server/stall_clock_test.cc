#include "rendezvous/server/stall_clock.h"

#include <gtest/gtest.h>

namespace muster::rendezvous {
namespace {

MonoTime At(double seconds) { return MonoTime::At(absl::Seconds(seconds)); }

TEST(StallClock, GoesWithTheMachinesClock) {
  StallClock clock;
  clock.Expect(At(10));
  EXPECT_EQ(clock.Now(At(3)), At(3));
}

TEST(StallClock, LeavesOutWhatTheLoopWasLate) {
  StallClock clock;
  clock.Expect(At(10));
  EXPECT_EQ(clock.Now(At(15)), At(10));
  EXPECT_EQ(clock.Now(At(16)), At(11));
}

TEST(StallClock, CountsAShortDelay) {
  StallClock clock;
  clock.Expect(At(10));
  EXPECT_EQ(clock.Now(At(10.05)), At(10.05));
}

TEST(StallClock, TellsWhenAnInstantComes) {
  StallClock clock;
  clock.Expect(At(10));
  clock.Now(At(15));
  EXPECT_EQ(clock.ToReal(At(20)), At(25));
  EXPECT_TRUE(clock.ToReal(MonoTime::InfiniteFuture()).is_infinite());
}

}  // namespace
}  // namespace muster::rendezvous
