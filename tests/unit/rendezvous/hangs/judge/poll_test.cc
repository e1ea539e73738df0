#include "rendezvous/hangs/judge/poll.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::hangs {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Incarnation kFirst(11);
constexpr Incarnation kSecond(12);

class PollOfTwo : public ::testing::Test {
 protected:
  PollOfTwo() { poll_.Ask(7, {kFirst, kSecond}, until_); }

  const MonoTime until_ = MonoTime::At(absl::Hours(1));
  Poll poll_;
};

TEST_F(PollOfTwo, IsOverOnceBothHaveAnswered) {
  EXPECT_THAT(poll_.Tell(SayRecovery{}), SizeIs(2));
  EXPECT_TRUE(poll_.Take(kFirst, 7));
  EXPECT_FALSE(poll_.IsOver(MonoTime()));
  EXPECT_THAT(poll_.Tell(SayRecovery{}), SizeIs(1)) << "the other is awaited";
  EXPECT_TRUE(poll_.Take(kSecond, 7));
  EXPECT_TRUE(poll_.IsOver(MonoTime()));
  EXPECT_TRUE(poll_.HaveAllAnswered());
}

TEST_F(PollOfTwo, IsGivenUpInTimeAndKnowsWhoHasAnswered) {
  poll_.Take(kFirst, 7);
  EXPECT_EQ(poll_.NextDeadline(), until_);
  EXPECT_TRUE(poll_.IsOver(until_));
  EXPECT_FALSE(poll_.HaveAllAnswered());
  poll_.Close();
  EXPECT_FALSE(poll_.IsOver(until_));
  EXPECT_TRUE(poll_.NextDeadline().is_infinite());
  EXPECT_TRUE(poll_.HasAnswered(kFirst));
  EXPECT_FALSE(poll_.Take(kSecond, 7)) << "too late";
  EXPECT_FALSE(poll_.HasAnswered(kSecond));
}

TEST_F(PollOfTwo, TakesNoAnswerOfStrangersNorTwiceNorToAnotherQuestion) {
  EXPECT_FALSE(poll_.Take(Incarnation(13), 7));
  EXPECT_FALSE(poll_.Take(kFirst, 6));
  EXPECT_TRUE(poll_.Take(kFirst, 7));
  EXPECT_FALSE(poll_.Take(kFirst, 7));
  poll_.Ask(8, {kSecond}, until_);
  EXPECT_FALSE(poll_.HasAnswered(kFirst));
  EXPECT_FALSE(poll_.Take(kSecond, 7));
}

TEST(Poll, AsksNobodyBeforeItsFirstQuestion) {
  Poll poll;
  EXPECT_FALSE(poll.IsOver(MonoTime::InfiniteFuture()));
  EXPECT_FALSE(poll.Take(kFirst, 0));
  EXPECT_THAT(poll.Tell(SayRecovery{}), IsEmpty());
  poll.Ask(0, {}, MonoTime::InfiniteFuture());
  EXPECT_TRUE(poll.IsOver(MonoTime())) << "nobody is awaited";
}

}  // namespace
}  // namespace muster::hangs
