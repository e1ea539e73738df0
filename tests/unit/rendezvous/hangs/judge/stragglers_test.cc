#include "rendezvous/hangs/judge/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

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
    auto change = stragglers_.OnPaces(paces);
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

// --- By records

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

class LateRanks : public ::testing::TestWithParam<int> {};

TEST_P(LateRanks, AreToldOnceInTheSecondWindow) {
  const int size = GetParam();
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  Stragglers late;
  const Steps steps = Steps(size).Late(size - 1, absl::Milliseconds(200));
  EXPECT_FALSE(late.OnArrivals({steps.On(ranks)}));
  const auto words = late.OnArrivals({steps.On(ranks)});
  ASSERT_TRUE(words);
  EXPECT_THAT(words->text,
              HasSubstr(absl::StrCat("rank ", size - 1, " is slow, not hung: it comes ")));
  EXPECT_THAT(words->text, HasSubstr("after the others, and last to"));
  EXPECT_THAT(words->text, HasSubstr("of the last 40 collectives of group default_pg"));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(late.OnArrivals({steps.On(ranks)})) << "once";
}

TEST_P(LateRanks, AreNoneWhereAllComeTogether) {
  const int size = GetParam();
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  Stragglers late;
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(late.OnArrivals({Steps(size).On(ranks)}));
}

TEST_P(LateRanks, AreSeenOverNodesBeyondThreeTimesTheErrorOfTheirClocks) {
  const int size = GetParam();
  const Steps steps = Steps(size).Late(1, absl::Milliseconds(200));
  const auto told = [&](absl::Duration error) {
    Stragglers late;
    std::vector<ArrivalsAt> nodes;
    for (int r = 0; r < size; ++r) nodes.push_back(steps.On({r}, {}, error));
    late.OnArrivals(nodes);
    return late.OnArrivals(nodes).has_value();
  };
  EXPECT_TRUE(told(absl::Milliseconds(20)));
  EXPECT_FALSE(told(absl::Milliseconds(35))) << "of two clocks: 70 ms, three times that is more";
}

INSTANTIATE_TEST_SUITE_P(Ranks, LateRanks, ::testing::Values(2, 3, 4));

TEST(LateRank, ThatSpreadFarAmongThemselvesHaveNobodyThatIsSlow) {
  Stragglers late;
  const Steps stages = Steps(4)
                           .Late(1, absl::Milliseconds(50))
                           .Late(2, absl::Milliseconds(100))
                           .Late(3, absl::Milliseconds(150));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(late.OnArrivals({stages.On({0, 1, 2, 3})}));
}

TEST(LateRank, InLongStepsAreThoseThatAre200MsLate) {
  const auto told = [](absl::Duration step, absl::Duration jitter, absl::Duration by) {
    Stragglers late;
    const Steps steps = Steps(3, step, jitter).Late(1, by);
    late.OnArrivals({steps.On({0, 1, 2})});
    return late.OnArrivals({steps.On({0, 1, 2})}).has_value();
  };
  constexpr absl::Duration kJitter = absl::Milliseconds(3);
  EXPECT_TRUE(told(absl::Seconds(20), kJitter, absl::Milliseconds(210)));
  EXPECT_FALSE(told(absl::Seconds(20), kJitter, absl::Milliseconds(190)));
  EXPECT_TRUE(told(absl::Seconds(1), kJitter, absl::Milliseconds(110)));
  EXPECT_FALSE(told(absl::Seconds(1), kJitter, absl::Milliseconds(90)));
  // Steps that vary: who is late is within what lies between the others.
  EXPECT_FALSE(told(absl::Seconds(20), absl::Milliseconds(400), absl::Milliseconds(210)));
}

TEST(LateRank, OnAGpuAreThoseThatAreLateOnTheHost) {
  Stragglers late;
  const Steps steps = Steps(2).Late(0, absl::Milliseconds(200)).OnDevice();
  late.OnArrivals({steps.On({0, 1})});
  EXPECT_THAT(late.OnArrivals({steps.On({0, 1})}).value_or(Stragglers::Change()).text,
              HasSubstr("not GPU time"));
}

TEST(LateRank, NeedACollectiveOfAllNodesToCompare) {
  Stragglers late;
  ArrivalsAt other = Steps(2).On({1});
  for (ArrivalRow& row : other.groups[0].rows) row.sequence += 30;
  const Steps steps = Steps(2).Late(0, absl::Milliseconds(200));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(late.OnArrivals({steps.On({0}), other}));
}

// --- Summaries of all nodes

// Nodes of two ranks each, whose judge has heard what they say.
class StragglersOfNodes : public ::testing::Test {
 protected:
  void Start(int num_nodes) {
    std::vector<WatchedNode> nodes;
    for (int i = 0; i < num_nodes; ++i) {
      nodes.push_back({.agent = Incarnation(i + 1), .first_rank = 2 * i, .num_ranks = 2});
    }
    nodes_.StartRound(kRound, std::move(nodes));
  }
  void Summarize(int node, NodeSummary summary) {
    const Incarnation agent(node + 1);
    summary.round = kRound;
    nodes_.Take(agent, std::move(summary));
    Hear(watch_.OnSummary(nodes_, agent, now_));
  }
  void Hear(const std::vector<OrderTo>& orders) {
    for (const OrderTo& order : orders) {
      if (std::holds_alternative<AskArrivals>(order.order)) asked_.push_back(order);
      const auto* say = std::get_if<SaySlow>(&order.order);
      // All are told the same.
      if (say != nullptr && order.to == Incarnation(1)) said_.push_back(say->text);
    }
  }
  void Answer(Incarnation agent, const NodeArrivals& arrivals) {
    watch_.OnWord(agent, arrivals, now_);
    Hear(watch_.Tick(nodes_, now_));
  }

  static constexpr Round kRound = Round(3);
  MonoTime now_ = MonoTime::At(absl::Hours(2));
  NodeTable nodes_;
  Stragglers watch_;
  std::vector<OrderTo> asked_;
  std::vector<std::string> said_;
};

// Three nodes, of whose ranks rank 2 takes half as long again.
class MarksOfThreeNodes : public StragglersOfNodes {
 protected:
  MarksOfThreeNodes() { Start(3); }
  void Window(int node, int64_t window) {
    const absl::Duration usual = absl::Milliseconds(100);
    NodePaces paces{.window = window};
    if (window != 0) paces.own = {node == 1 ? 1.5 * usual : usual, usual};
    Summarize(node, {.paces = paces});
  }
};

TEST_F(MarksOfThreeNodes, NameARankOnceThatAllNodesHaveSeenSlow) {
  for (int window = 1; window <= 6; ++window) {
    for (const int node : {0, 1, 2}) Window(node, window);
  }
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 2 is slow, not hung")));
}

TEST_F(MarksOfThreeNodes, AreNotAwaitedOfANodeThatMeasuresNothing) {
  Window(2, 1);
  Window(2, 0);
  for (int window = 1; window <= 6; ++window) {
    for (const int node : {0, 1}) Window(node, window);
  }
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 2 is slow, not hung")));
}

TEST_F(MarksOfThreeNodes, AreNotComparedBeforeAllHaveANewWindow) {
  for (int window = 1; window <= 9; ++window) {
    Window(0, 1);
    Window(1, window);
    if (window == 1) Window(2, 1);
    Window(1, window);
  }
  EXPECT_THAT(said_, IsEmpty());
}

class RecordsOfTwoNodes : public StragglersOfNodes {
 protected:
  RecordsOfTwoNodes() { Start(2); }

  // Both have read a new window; each answer takes `trip` there and back, and comes `at` of it.
  void PassWindow(const Steps& steps, absl::Duration trip, double at = 0.5) {
    ++window_;
    for (const int node : {0, 1}) Summarize(node, {.arrival_window = window_});
    const MonoTime asked_at = now_;
    now_ = now_ + trip;
    for (const OrderTo& order : std::exchange(asked_, {})) {
      const int rank = order.to == Incarnation(1) ? 0 : 1;
      // It says how long ago it was as it answers; how late that was nobody sees.
      ArrivalsAt told = steps.On({rank});
      const absl::Duration since = (asked_at + at * trip) - MonoTime::At(absl::Hours(1));
      for (ArrivalRow& row : told.groups[0].rows) {
        for (absl::Duration* ago : {&row.last_ago, &row.second_ago, &row.first_ago}) *ago += since;
      }
      Answer(order.to, {std::get<AskArrivals>(order.order).question, kRound, told.groups});
    }
    now_ = now_ + absl::Seconds(10);
  }

  int64_t window_ = 0;
};

TEST_F(RecordsOfTwoNodes, NameTheSlowRankOfAnotherNode) {
  const Steps steps = Steps(2).Late(1, absl::Milliseconds(200));
  PassWindow(steps, absl::Milliseconds(4));
  PassWindow(steps, absl::Milliseconds(4));
  EXPECT_THAT(said_, IsEmpty()) << "node 2 was not known to measure at first";
  PassWindow(steps, absl::Milliseconds(4));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 1 is slow")));
}

TEST_F(RecordsOfTwoNodes, SayNothingThatTheRoundTripMayHaveMade) {
  const Steps steps = Steps(2).Late(1, absl::Milliseconds(200));
  for (int i = 0; i < 4; ++i) PassWindow(steps, absl::Milliseconds(100));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(RecordsOfTwoNodes, SayNothingOfRanksThatComeTogetherHoweverTheAnswersTravel) {
  for (const double at : {0.0, 0.3, 1.0}) {
    for (int i = 0; i < 4; ++i) PassWindow(Steps(2), absl::Milliseconds(80), at);
  }
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(RecordsOfTwoNodes, SayNothingWhereOneDoesNotAnswer) {
  const Steps steps = Steps(2).Late(1, absl::Milliseconds(200));
  for (int window = 1; window < 5; ++window) {
    for (const int node : {0, 1}) Summarize(node, {.arrival_window = window});
    ASSERT_THAT(asked_, SizeIs(window == 1 ? 1 : 2));
    const uint64_t question = std::get<AskArrivals>(asked_[0].order).question;
    asked_.clear();
    Answer(Incarnation(1), {question, kRound, steps.On({0}).groups});
    now_ = now_ + Stragglers::kTimeForArrivals;
    Hear(watch_.Tick(nodes_, now_));
    EXPECT_TRUE(watch_.NextDeadline().is_infinite());
  }
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(RecordsOfTwoNodes, AreNotAskedOfOneThatMeasuresNothing) {
  Summarize(0, {.arrival_window = 0});
  EXPECT_THAT(asked_, IsEmpty());
  Summarize(0, {.arrival_window = 1});
  EXPECT_THAT(asked_, SizeIs(1));
}

}  // namespace
}  // namespace muster::hangs
