#include "rendezvous/hangs/judge/late_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::hangs {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Windows of 40 steps of ranks that come within `jitter` of each other, but for `late`.
class Steps {
 public:
  explicit Steps(int num_ranks, absl::Duration step = absl::Milliseconds(300),
                 absl::Duration jitter = absl::Milliseconds(3))
      : late_(num_ranks), step_(step), jitter_(jitter) {}
  Steps& Late(int rank, absl::Duration by) {
    late_[rank] = by;
    return *this;
  }
  // Arrivals as a node with these ranks says them; its answer comes `off` later, and may be off by
  // `error`.
  ArrivalsAt On(const std::vector<int>& ranks, absl::Duration off = {},
                absl::Duration error = {}) const {
    GroupArrivals group{.name = "0", .label = "default_pg", .is_on_device = is_on_device_};
    for (int step = 0; step < 40; ++step) {
      std::vector<std::pair<absl::Duration, int>> ago;
      for (const int rank : ranks) {
        std::mt19937 random(static_cast<unsigned>(step * 64 + rank));
        const absl::Duration jitter = jitter_ * (random() % 3000) / 3000;
        const bool is_late = step >= 2;  // nearly every
        ago.emplace_back(
            (40 - step) * step_ - (is_late ? late_[rank] : absl::ZeroDuration()) - jitter, rank);
      }
      std::sort(ago.begin(), ago.end());
      group.rows.push_back({.sequence = step,
                            .last_rank = ago.front().second,
                            .num_ranks = static_cast<int>(ago.size()),
                            .last_ago = ago.front().first,
                            .second_ago = ago[ago.size() > 1 ? 1 : 0].first,
                            .first_ago = ago.back().first});
    }
    return {.answered_at = MonoTime::At(absl::Hours(1)) + off, .error = error, .groups = {group}};
  }
  Steps& OnDevice() {
    is_on_device_ = true;
    return *this;
  }

 private:
  std::vector<absl::Duration> late_;
  const absl::Duration step_;
  const absl::Duration jitter_;
  bool is_on_device_ = false;
};

class SlowRanks : public ::testing::TestWithParam<int> {};

TEST_P(SlowRanks, AreToldOnceInTheSecondWindow) {
  const int size = GetParam();
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  LateRanks late;
  const Steps steps = Steps(size).Late(size - 1, absl::Milliseconds(200));
  EXPECT_FALSE(late.OnWindow({steps.On(ranks)}));
  const auto words = late.OnWindow({steps.On(ranks)});
  ASSERT_TRUE(words);
  EXPECT_THAT(*words, HasSubstr(absl::StrCat("rank ", size - 1, " is slow, not hung: it comes ")));
  EXPECT_THAT(*words, HasSubstr("after the others, and last to"));
  EXPECT_THAT(*words, HasSubstr("of the last 40 collectives of group default_pg"));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(late.OnWindow({steps.On(ranks)})) << "once";
}

TEST_P(SlowRanks, AreNoneWhereAllComeTogether) {
  const int size = GetParam();
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  LateRanks late;
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(late.OnWindow({Steps(size).On(ranks)}));
}

TEST_P(SlowRanks, AreSeenOverNodesBeyondThreeTimesTheErrorOfTheirClocks) {
  const int size = GetParam();
  const Steps steps = Steps(size).Late(1, absl::Milliseconds(200));
  const auto told = [&](absl::Duration error) {
    LateRanks late;
    std::vector<ArrivalsAt> nodes;
    for (int r = 0; r < size; ++r) nodes.push_back(steps.On({r}, {}, error));
    late.OnWindow(nodes);
    return late.OnWindow(nodes).has_value();
  };
  EXPECT_TRUE(told(absl::Milliseconds(20)));
  EXPECT_FALSE(told(absl::Milliseconds(35))) << "of two clocks: 70 ms, three times that is more";
}

INSTANTIATE_TEST_SUITE_P(Ranks, SlowRanks, ::testing::Values(2, 3, 4));

TEST(LateRanks, ThatSpreadFarAmongThemselvesHaveNobodyThatIsSlow) {
  LateRanks late;
  const Steps stages = Steps(4)
                           .Late(1, absl::Milliseconds(50))
                           .Late(2, absl::Milliseconds(100))
                           .Late(3, absl::Milliseconds(150));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(late.OnWindow({stages.On({0, 1, 2, 3})}));
}

TEST(LateRanks, InLongStepsAreThoseThatAre200MsLate) {
  const auto told = [](absl::Duration step, absl::Duration jitter, absl::Duration by) {
    LateRanks late;
    const Steps steps = Steps(3, step, jitter).Late(1, by);
    late.OnWindow({steps.On({0, 1, 2})});
    return late.OnWindow({steps.On({0, 1, 2})}).has_value();
  };
  constexpr absl::Duration kJitter = absl::Milliseconds(3);
  EXPECT_TRUE(told(absl::Seconds(20), kJitter, absl::Milliseconds(210)));
  EXPECT_FALSE(told(absl::Seconds(20), kJitter, absl::Milliseconds(190)));
  EXPECT_TRUE(told(absl::Seconds(1), kJitter, absl::Milliseconds(110)));
  EXPECT_FALSE(told(absl::Seconds(1), kJitter, absl::Milliseconds(90)));
  // Steps that vary: who is late is within what lies between the others.
  EXPECT_FALSE(told(absl::Seconds(20), absl::Milliseconds(400), absl::Milliseconds(210)));
}

TEST(LateRanks, OnAGpuAreThoseThatAreLateOnTheHost) {
  LateRanks late;
  const Steps steps = Steps(2).Late(0, absl::Milliseconds(200)).OnDevice();
  late.OnWindow({steps.On({0, 1})});
  EXPECT_THAT(late.OnWindow({steps.On({0, 1})}).value_or(""), HasSubstr("not GPU time"));
}

TEST(LateRanks, NeedACollectiveOfAllNodesToCompare) {
  LateRanks late;
  ArrivalsAt other = Steps(2).On({1});
  for (ArrivalRow& row : other.groups[0].rows) row.sequence += 30;
  const Steps steps = Steps(2).Late(0, absl::Milliseconds(200));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(late.OnWindow({steps.On({0}), other}));
}

// --- Asked over the stream

class LateWatchOfTwoNodes : public ::testing::Test {
 protected:
  LateWatchOfTwoNodes() { watch_.StartRound(Round(3)); }

  // Both have read a new window; each answer takes `trip` there and back, and comes `at` of it.
  std::optional<std::string> PassWindow(const Steps& steps, absl::Duration trip, double at = 0.5) {
    ++window_;
    std::optional<std::string> words;
    for (const Incarnation node : {Incarnation(1), Incarnation(2)}) {
      for (const OrderTo& order : watch_.OnSummary(node, window_, now_)) {
        asked_.push_back(order);
      }
    }
    const MonoTime asked_at = now_;
    now_ = now_ + trip;
    for (const OrderTo& order : std::exchange(asked_, {})) {
      const int rank = order.to == Incarnation(1) ? 0 : 1;
      // It says how long ago it was as it answers; how late that was nobody sees.
      ArrivalsAt said = steps.On({rank});
      const absl::Duration since = (asked_at + at * trip) - MonoTime::At(absl::Hours(1));
      for (ArrivalRow& row : said.groups[0].rows) {
        for (absl::Duration* ago : {&row.last_ago, &row.second_ago, &row.first_ago}) *ago += since;
      }
      const NodeArrivals answer{std::get<AskArrivals>(order.order).question, Round(3), said.groups};
      if (auto found = watch_.OnWord(order.to, answer, now_)) words = found;
    }
    now_ = now_ + absl::Seconds(10);
    return words;
  }

  MonoTime now_ = MonoTime::At(absl::Hours(2));
  LateWatch watch_;
  int64_t window_ = 0;
  std::vector<OrderTo> asked_;
};

TEST_F(LateWatchOfTwoNodes, FindsTheSlowRankOfAnotherNode) {
  const Steps steps = Steps(2).Late(1, absl::Milliseconds(200));
  EXPECT_FALSE(PassWindow(steps, absl::Milliseconds(4))) << "node 2 is not known to measure";
  EXPECT_FALSE(PassWindow(steps, absl::Milliseconds(4)));
  EXPECT_THAT(PassWindow(steps, absl::Milliseconds(4)).value_or(""), HasSubstr("rank 1 is slow"));
}

TEST_F(LateWatchOfTwoNodes, SaysNothingThatTheRoundTripMayHaveMade) {
  const Steps steps = Steps(2).Late(1, absl::Milliseconds(200));
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(PassWindow(steps, absl::Milliseconds(100)));
}

TEST_F(LateWatchOfTwoNodes, SaysNothingOfRanksThatComeTogetherHoweverTheAnswersTravel) {
  for (const double at : {0.0, 0.3, 1.0}) {
    for (int i = 0; i < 4; ++i) EXPECT_FALSE(PassWindow(Steps(2), absl::Milliseconds(80), at));
  }
}

TEST_F(LateWatchOfTwoNodes, SaysNothingWhereOneDoesNotAnswer) {
  const Steps steps = Steps(2).Late(1, absl::Milliseconds(200));
  for (int window = 1; window < 5; ++window) {
    std::vector<OrderTo> asked = watch_.OnSummary(Incarnation(1), window, now_);
    for (OrderTo& order : watch_.OnSummary(Incarnation(2), window, now_)) asked.push_back(order);
    ASSERT_THAT(asked, SizeIs(window == 1 ? 1 : 2));
    const uint64_t question = std::get<AskArrivals>(asked[0].order).question;
    EXPECT_FALSE(watch_.OnWord(Incarnation(1), {question, Round(3), steps.On({0}).groups}, now_));
    now_ = now_ + LateWatch::kTimeForArrivals;
    EXPECT_FALSE(watch_.Tick(now_));
    EXPECT_TRUE(watch_.NextDeadline().is_infinite());
  }
}

TEST_F(LateWatchOfTwoNodes, AsksNobodyThatMeasuresNothing) {
  EXPECT_THAT(watch_.OnSummary(Incarnation(1), 0, now_), IsEmpty());
  EXPECT_THAT(watch_.OnSummary(Incarnation(1), 1, now_), SizeIs(1));
}

}  // namespace
}  // namespace muster::hangs
