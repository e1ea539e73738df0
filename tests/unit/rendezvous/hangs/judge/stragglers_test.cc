#include "rendezvous/hangs/judge/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <vector>

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two ranks in step with each other, of which rank 1 computes and rank 0 mostly waits for it.
class Meter : public ::testing::Test {
 protected:
  Meter() {
    for (const int r : {0, 1}) {
      pulses_.push_back({.rank = r, .is_told = true, .phase = Phase::kForward});
    }
    meter_.Listen(pulses_, now_);
  }
  // Returns how many windows ended.
  int Pass(int seconds, int64_t steps_a_second) {
    int windows = 0;
    for (int i = 0; i < seconds; ++i) {
      now_ = now_ + absl::Seconds(1);
      for (Pulse& pulse : pulses_) pulse.num_steps += steps_a_second;
      pulses_[0].waited += absl::Milliseconds(750);
      windows += static_cast<int>(meter_.Listen(pulses_, now_));
    }
    return windows;
  }

  MonoTime now_ = MonoTime::At(absl::Hours(1));
  PaceMeter meter_;
  std::vector<Pulse> pulses_;
};

TEST_F(Meter, TellsARanksOwnPartOfAStepFromItsWaiting) {
  EXPECT_EQ(Pass(10, 5), 1);
  EXPECT_THAT(meter_.paces(), ElementsAre(RankPace{0, absl::Milliseconds(50)},
                                          RankPace{1, absl::Milliseconds(200)}));
  EXPECT_EQ(Pass(30, 5), 3);
}

TEST_F(Meter, MeasuresLongStepsOverLongWindows) {
  EXPECT_EQ(Pass(29, 1), 0);
  EXPECT_EQ(Pass(1, 1), 1);
  EXPECT_EQ(meter_.paces()[1].own, absl::Seconds(1));
}

TEST_F(Meter, DropsWindowsInWhichARankDoesSomethingElse) {
  Pass(5, 5);
  pulses_[1].phase = Phase::kSave;
  Pass(1, 5);
  pulses_[1].phase = Phase::kForward;
  EXPECT_EQ(Pass(9, 5), 0);
  EXPECT_EQ(Pass(1, 5), 1);
}

TEST_F(Meter, DropsWindowsInWhichNobodyLooked) {
  Pass(5, 5);
  now_ = now_ + absl::Minutes(3);
  EXPECT_EQ(Pass(9, 5), 0);
  now_ = now_ - absl::Hours(1);
  EXPECT_EQ(Pass(9, 5), 0);
}

TEST_F(Meter, HasNoPacesOfRanksThatTellNothing) {
  for (Pulse& pulse : pulses_) pulse.is_told = false;
  EXPECT_EQ(Pass(100, 5), 0);
}

class SlowRanks : public ::testing::Test {
 protected:
  // A window of `num` ranks with a tenth of a second each, but for `others`, in milliseconds.
  std::optional<Stragglers::Change> Window(int num, const std::map<int, double>& others = {}) {
    std::vector<RankPace> paces;
    for (int r = 0; r < num; ++r) paces.push_back({r, absl::Milliseconds(100)});
    for (const auto& [rank, own] : others) paces[rank].own = absl::Milliseconds(own);
    auto change = stragglers_.OnWindow(paces);
    if (change) last_ = *change;
    changes_ += static_cast<int>(change.has_value());
    return change;
  }

  Stragglers stragglers_;
  Stragglers::Change last_;
  int changes_ = 0;
};

TEST_F(SlowRanks, AreNamedOnceAfterThreeWindows) {
  EXPECT_FALSE(Window(8, {{3, 150}}));
  EXPECT_FALSE(Window(8, {{3, 150}}));
  ASSERT_TRUE(Window(8, {{3, 150}}));
  EXPECT_THAT(last_.slow, ElementsAre(3));
  EXPECT_EQ(
      last_.text,
      "rank 3 is slow, not hung: its own part of a step, not counting waits for others, takes 1.5 "
      "times the median of all ranks, which is 100ms");
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(Window(8, {{3, 150}}));
}

TEST_F(SlowRanks, AreSaidAgainWhenOthersAreSlow) {
  for (int i = 0; i < 3; ++i) Window(8, {{3, 150}});
  for (int i = 0; i < 3; ++i) Window(8, {{3, 150}, {5, 300}});
  EXPECT_EQ(changes_, 2);
  EXPECT_THAT(last_.slow, ElementsAre(3, 5));
  EXPECT_THAT(last_.text, HasSubstr("ranks 3 and 5 are slow, not hung: their own part"));
  EXPECT_THAT(last_.text, HasSubstr("1.5 and 3.0 times"));
  for (int i = 0; i < 4; ++i) Window(8);
  EXPECT_THAT(last_.slow, IsEmpty());
  EXPECT_EQ(last_.text, "no rank is slow any more");
}

TEST_F(SlowRanks, AreNotThoseThatHaveASlowMomentNowAndThen) {
  for (int i = 0; i < 50; ++i) Window(8, {{i % 8, 300}});
  EXPECT_EQ(changes_, 0);
}

TEST_F(SlowRanks, AreNotThoseOfLessThanATenth) {
  for (int i = 0; i < 10; ++i) Window(8, {{3, 109}});
  EXPECT_EQ(changes_, 0);
}

TEST_F(SlowRanks, AreNoneWhereRanksDifferAnyway) {
  for (int i = 0; i < 10; ++i) Window(6, {{0, 60}, {1, 80}, {2, 90}, {3, 110}, {4, 125}, {5, 140}});
  EXPECT_EQ(changes_, 0);
}

TEST_F(SlowRanks, AreNoneWhereAllAreSlow) {
  for (int i = 0; i < 10; ++i) Window(4);
  for (int i = 0; i < 10; ++i) Window(4, {{0, 900}, {1, 900}, {2, 900}, {3, 900}});
  EXPECT_EQ(changes_, 0);
}

TEST_F(SlowRanks, AreMeasuredByTheFasterOfTwo) {
  for (int i = 0; i < 3; ++i) Window(2, {{1, 150}});
  EXPECT_THAT(last_.slow, ElementsAre(1));
}

TEST_F(SlowRanks, AreNoneWhereNothingIsKnown) {
  for (int i = 0; i < 5; ++i) Window(1, {{0, 900}});
  for (int i = 0; i < 5; ++i) Window(2, {{0, 0}, {1, 0}});
  EXPECT_EQ(changes_, 0);
}

TEST_F(SlowRanks, AreNamedInFewWords) {
  std::map<int, double> slow;
  for (int r = 0; r < 40; ++r) slow[2 * r] = 200 + r;
  for (int i = 0; i < 3; ++i) Window(1000, slow);
  EXPECT_THAT(last_.slow, SizeIs(40));
  EXPECT_LT(last_.text.size(), 300u);
}

}  // namespace
}  // namespace muster::hangs
