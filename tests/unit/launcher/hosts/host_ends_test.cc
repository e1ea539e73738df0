#include "launcher/hosts/host_ends.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"

namespace muster::launcher {
namespace {

using ::testing::HasSubstr;

HostEnds::End Exit(const std::string& host, int exit_code) {
  return {.host = host, .was_greeted = true, .exit_code = exit_code};
}

HostEnds::End Unreachable(const std::string& host) {
  return {.host = host, .last_words = "Connection refused"};
}

class HostEndsTest : public ::testing::Test {
 protected:
  HostEnds::Orders End(const HostEnds::End& end) { return ends_.OnEnd(end, now_); }
  HostEnds::Orders Pass(absl::Duration time) {
    now_ = now_ + time;
    return ends_.OnTime(now_);
  }

  MonoTime now_ = MonoTime::At(absl::Hours(1));
  HostEnds ends_{3};
};

TEST_F(HostEndsTest, IsZeroOnceAllHaveEndedWithZero) {
  for (const char* host : {"a", "b", "c"}) {
    EXPECT_FALSE(ends_.HaveAllEnded());
    const HostEnds::Orders orders = End(Exit(host, 0));
    EXPECT_FALSE(orders.say || orders.stops_others);
  }
  EXPECT_TRUE(ends_.HaveAllEnded());
  EXPECT_TRUE(ends_.NextDeadline().is_infinite());
  EXPECT_EQ(ends_.ExitCode(), 0);
}

TEST_F(HostEndsTest, TheOthersOfOneThatFailedAreStoppedAfterAWhile) {
  End(Exit("b", 2));
  EXPECT_EQ(ends_.NextDeadline() - now_, absl::Seconds(10));
  EXPECT_FALSE(Pass(absl::Seconds(9)).stops_others);
  const HostEnds::Orders orders = Pass(absl::Seconds(1));
  EXPECT_TRUE(orders.stops_others);
  ASSERT_TRUE(orders.say);
  EXPECT_EQ(orders.say->text,
            "the agent on b exited with 2, and the job needs all of its 3 hosts; stopping the "
            "others");
  EXPECT_TRUE(ends_.NextDeadline().is_infinite());
  End(Exit("a", 143));
  End(Exit("c", 143));
  EXPECT_EQ(ends_.ExitCode(), 2) << "the others ended because the launcher stopped them";
}

TEST_F(HostEndsTest, AHostThatWasStoppedBeforeItWasReachedIsNotCalledUnreachable) {
  End(Exit("b", 2));
  EXPECT_TRUE(Pass(absl::Seconds(10)).stops_others);
  const HostEnds::Orders orders = End({.host = "c"});
  EXPECT_FALSE(orders.say || orders.stops_others);
  End(Exit("a", 143));
  EXPECT_EQ(ends_.ExitCode(), 2);
}

TEST_F(HostEndsTest, IsTheWorstOfThoseThatEndedByThemselves) {
  End(Exit("a", 1));
  End(Exit("b", 7));
  End(Exit("c", 0));
  EXPECT_EQ(ends_.ExitCode(), 7);
  EXPECT_EQ(ends_.Reason(), "the agent on a exited with 1");
  const HostEnds::Orders orders = Pass(absl::Minutes(1));
  EXPECT_FALSE(orders.say || orders.stops_others) << "nobody is left";
}

TEST_F(HostEndsTest, OneThatIsNotReachedStopsTheOthersAtOnce) {
  End(Exit("a", 0));
  const HostEnds::Orders orders = End(Unreachable("b"));
  EXPECT_TRUE(orders.stops_others);
  ASSERT_TRUE(orders.say);
  EXPECT_EQ(orders.say->text,
            "cannot start an agent on b: Connection refused; stopping the others");
  EXPECT_FALSE(End(Unreachable("c")).say) << "its ssh was cut";
  EXPECT_EQ(ends_.ExitCode(), kExitNodesMissing);
  EXPECT_EQ(ends_.Reason(), "cannot start an agent on b: Connection refused");
}

TEST_F(HostEndsTest, ALostConnectionSaysNothingOfTheJob) {
  const HostEnds::Orders orders = End(Exit("a", kConnectionFailed));
  ASSERT_TRUE(orders.say);
  EXPECT_TRUE(orders.say->is_warning);
  EXPECT_THAT(orders.say->text, HasSubstr("lost the connection to a"));
  EXPECT_FALSE(orders.stops_others);
  End(Exit("b", kConnectionFailed));
  End(Exit("c", kConnectionFailed));
  EXPECT_EQ(ends_.ExitCode(), kExitFailure) << "none has said how the job ended";
}

TEST_F(HostEndsTest, StopsNobodyWhereASignalWasPassedOn) {
  ends_.OnSignal(SIGINT);
  End(Exit("a", 130));
  const HostEnds::Orders orders = Pass(absl::Minutes(1));
  EXPECT_FALSE(orders.say || orders.stops_others);
  EXPECT_FALSE(End(Unreachable("b")).say) << "its ssh was cut";
  End(Exit("c", kConnectionFailed));
  EXPECT_EQ(ends_.ExitCode(), 130);
}

TEST(HostEnds, ASignalBeforeAnAgentHasBegunIsTheCode) {
  HostEnds ends(1);
  ends.OnSignal(SIGTERM);
  ends.OnEnd(Unreachable("a"), MonoTime());
  EXPECT_EQ(ends.ExitCode(), 143);
  EXPECT_EQ(ends.Reason(), "got SIGTERM (terminated)");
}

}  // namespace
}  // namespace muster::launcher
