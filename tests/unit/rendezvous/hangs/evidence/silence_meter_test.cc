#include "rendezvous/hangs/evidence/silence_meter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Ranks 0 and 1, watched once a second.
class SilenceMeterTest : public ::testing::Test {
 protected:
  SilenceMeterTest() { meter_.Listen(pulses_, now_); }

  void Pass(int seconds, const std::vector<RankSilence>& of_mute = {}) {
    for (int i = 0; i < seconds; ++i) {
      now_ = now_ + kWatchInterval;
      meter_.Listen(pulses_, now_, of_mute);
    }
  }

  MonoTime now_ = MonoTime::At(absl::Hours(1));
  SilenceMeter meter_;
  std::vector<Pulse> pulses_{{.rank = 0, .is_told = true, .phase = Phase::kReduce, .num_steps = 6},
                             {.rank = 1, .is_told = true, .phase = Phase::kReduce, .num_steps = 6}};
};

TEST_F(SilenceMeterTest, CountsFromWhatARankHasDoneLast) {
  Pass(3);
  ++pulses_[0].token;
  Pass(1);
  EXPECT_EQ(meter_.SilenceOf(0), absl::ZeroDuration());
  EXPECT_EQ(meter_.SilenceOf(1), absl::Seconds(4));
  EXPECT_TRUE(meter_.IsSomebodySilent(absl::Seconds(4)));
  EXPECT_FALSE(meter_.IsSomebodySilent(absl::Seconds(5)));
  EXPECT_THAT(meter_.Silences(),
              ElementsAre(RankSilence{0, WatchPhase::kStep, absl::ZeroDuration()},
                          RankSilence{1, WatchPhase::kStep, absl::Seconds(4)}));
}

TEST_F(SilenceMeterTest, LastsUntilTheTimeOfWhichIsTold) {
  for (int second = 0; second < 6; ++second) {
    pulses_[0].age = absl::Seconds(second % 3);  // it is asked every third second
    Pass(1);
  }
  EXPECT_EQ(meter_.SilenceOf(0), absl::Seconds(4));
  EXPECT_EQ(meter_.SilenceOf(1), absl::Seconds(6));
  pulses_[0].age = absl::Minutes(1);
  Pass(1);
  EXPECT_EQ(meter_.SilenceOf(0), absl::Seconds(4)) << "what is known of it stays so";
  EXPECT_TRUE(meter_.IsSomebodySilent(absl::Seconds(7)));
}

TEST_F(SilenceMeterTest, TimeInWhichNobodyWatchedIsNobodysSilence) {
  Pass(3);
  now_ = now_ + absl::Hours(3);  // the agent was stopped, or the machine slept
  Pass(1);
  EXPECT_LE(meter_.SilenceOf(1), absl::Seconds(3 + 2));
}

TEST_F(SilenceMeterTest, AClockThatGoesBackChangesNothing) {
  Pass(5);
  now_ = now_ - absl::Hours(2);
  Pass(3);
  EXPECT_LE(meter_.SilenceOf(1), absl::Seconds(8));
}

TEST_F(SilenceMeterTest, LearnsOfASilenceThatEndsUnlessTheRankHasWaited) {
  pulses_[1].is_waiting = true;
  Pass(3);
  for (Pulse& pulse : pulses_) ++pulse.token;
  Pass(1);
  ASSERT_EQ(meter_.Learned().counts.size(), 1u);
  EXPECT_EQ(meter_.Learned().counts[0].count, 1);
  meter_.StartRound();
  EXPECT_EQ(meter_.Learned().counts.size(), 1u) << "the round is another, the program is not";
}

class SilenceMeterAtTheStart : public SilenceMeterTest {
 protected:
  SilenceMeterAtTheStart() {
    pulses_[1].is_told = false;
    Pass(30, {{1, WatchPhase::kStart, absl::Seconds(20)}});
  }
};

TEST_F(SilenceMeterAtTheStart, TheSilenceOfARankThatTellsNothingEndsWithWhoTellsOfIt) {
  EXPECT_EQ(meter_.SilenceOf(1), absl::Seconds(20));
  Pass(1);
  EXPECT_EQ(meter_.Silences().size(), 1u);
  EXPECT_EQ(meter_.SilenceOf(1), absl::ZeroDuration());
}

TEST_F(SilenceMeterAtTheStart, HowLongARankWasWatchedEndsWhenItTellsSomething) {
  EXPECT_EQ(meter_.mute().at(1), absl::Seconds(30));
  pulses_[1].is_told = true;
  meter_.Listen(pulses_, now_);
  EXPECT_THAT(meter_.mute(), IsEmpty());
  EXPECT_EQ(meter_.SilenceOf(1), absl::ZeroDuration());
}

}  // namespace
}  // namespace muster::hangs
