#include "rendezvous/hangs/judge/said_verdict.h"

#include <gtest/gtest.h>

namespace muster::hangs {
namespace {

constexpr MonoTime kNow = MonoTime();

TEST(SaidVerdictTest, IsSaidAgainWithTheTimeThatHasPassed) {
  SaidVerdict said;
  EXPECT_FALSE(said.IsSaid());
  said.SayUntilDone({.question = 7, .since_detected = absl::Seconds(4)}, kNow);
  EXPECT_TRUE(said.IsActedOn());
  EXPECT_EQ(said.Tick(kNow + absl::Seconds(14)), nullptr);
  const SayVerdict* again = said.Tick(kNow + absl::Seconds(15));
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->question, 7u);
  EXPECT_EQ(again->since_detected, absl::Seconds(19));
  again = said.Tick(said.NextDeadline());
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->since_detected, absl::Seconds(34));
}

TEST(SaidVerdictTest, IsNotSaidAgainWhereNobodyOfItsRanksActs) {
  SaidVerdict said;
  said.OnlySay();
  EXPECT_TRUE(said.IsSaid());
  EXPECT_FALSE(said.IsActedOn());
  EXPECT_TRUE(said.NextDeadline().is_infinite());
  said.LeaveToOthers();
  EXPECT_TRUE(said.IsActedOn());
  EXPECT_TRUE(said.NextDeadline().is_infinite());
  said.Forget();
  EXPECT_FALSE(said.IsSaid());
}

}  // namespace
}  // namespace muster::hangs
