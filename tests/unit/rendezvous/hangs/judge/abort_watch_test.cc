#include "rendezvous/hangs/judge/abort_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/hangs/judge/job_watch.h"
#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::hangs {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr Round kRound(2);

Incarnation Agent(int node) { return Incarnation(100 + node); }

RankCalls Called(int rank, int64_t bytes) {
  Operation operation = AllReduce(6, bytes);
  operation.chain = 0;
  return {.rank = rank, .age = {}, .calls = {{"0", "world", operation}}};
}

// Three nodes of two ranks each, within the watch of their job: what it says is what the server
// says.
class Aborts : public ::testing::Test {
 protected:
  Aborts() {
    std::vector<WatchedNode> nodes;
    for (int node = 0; node < 3; ++node) {
      nodes.push_back({Agent(node), absl::StrCat("node", node), 2 * node, 2});
    }
    watch_.StartRound(kRound, nodes, now_);
    for (int node = 0; node < 3; ++node) Summarize(node);
  }

  void Summarize(int node) { Hear(watch_.OnWord(Agent(node), NodeSummary{.round = kRound}, now_)); }
  void Abort(int rank) { Hear(watch_.OnWord(Agent(rank / 2), RankAborted{kRound, rank}, now_)); }
  void Answer(int node, std::vector<RankCalls> ranks, std::vector<int> aborted = {}) {
    Hear(watch_.OnWord(Agent(node), NodeLastCalls{kRound, std::move(aborted), std::move(ranks)},
                       now_));
  }
  void Pass(absl::Duration time) {
    now_ = now_ + time;
    Hear(watch_.Tick(now_));
  }

  void Hear(const JobWatch::Orders& orders) {
    for (const auto& each : orders) {
      const OrderTo& to = std::get<OrderTo>(each);
      if (std::holds_alternative<AskLastCalls>(to.order)) asked_.push_back(to.to);
      if (const auto* say = std::get_if<SayAborts>(&to.order)) {
        EXPECT_EQ(say->round, kRound);
        told_.push_back(to.to);
        text_ = InWords(say->report);
      }
    }
  }

  MonoTime now_ = MonoTime::At(absl::Hours(1));
  JobWatch watch_;
  std::vector<Incarnation> asked_;
  std::vector<Incarnation> told_;
  std::string text_;
};

TEST_F(Aborts, AreSaidToAllNodesOnceAllHaveAnswered) {
  Abort(0);
  EXPECT_THAT(asked_, ElementsAre(Agent(0), Agent(1), Agent(2)));
  Answer(2, {Called(4, 4096), Called(5, 8192)});
  Answer(0, {Called(1, 4096)}, {0});
  EXPECT_THAT(told_, IsEmpty());
  Answer(1, {Called(2, 4096), Called(3, 4096)});
  EXPECT_THAT(told_, ElementsAre(Agent(0), Agent(1), Agent(2)));
  EXPECT_THAT(
      text_,
      AllOf(HasSubstr("rank 0 has aborted"),
            HasSubstr("rank 5 called all_reduce #6 (group world, 8192 bytes f32) where ranks "
                      "0-4 called all_reduce #6 (group world, 4096 bytes f32)")));
  Pass(absl::Hours(1));
  EXPECT_THAT(told_, SizeIs(3)) << "once";
}

// The rank that loses its connection fails, and the round stops, before the answers have come.
TEST_F(Aborts, AreSaidAlsoWhereTheRoundStopsMeanwhile) {
  Abort(0);
  watch_.StopRound();
  Answer(0, {Called(1, 4096)}, {0});
  Answer(1, {Called(2, 4096)});
  Answer(2, {Called(5, 8192)});
  EXPECT_THAT(told_, SizeIs(3));
  EXPECT_THAT(text_, HasSubstr("no wait can heal"));
}

TEST_F(Aborts, AreAskedForAlsoWhereTheRoundHasBeenStoppedBefore) {
  watch_.StopRound();
  Abort(0);
  EXPECT_THAT(asked_, SizeIs(3));
}

// The node may be of an older version, or hang.
TEST_F(Aborts, AreSaidInTimeWhereANodeDoesNotAnswer) {
  Abort(0);
  Answer(0, {Called(1, 4096)}, {0});
  Answer(1, {Called(2, 4096), Called(3, 4096)});
  EXPECT_LE(watch_.NextDeadline() - now_, absl::Seconds(1));
  Pass(watch_.NextDeadline() - now_);
  EXPECT_THAT(told_, SizeIs(3));
  EXPECT_THAT(text_, HasSubstr("What ranks 0, 4 and 5 called is not known"));
  Answer(2, {Called(5, 8192)});
  EXPECT_THAT(told_, SizeIs(3)) << "too late";
}

TEST_F(Aborts, AreWaitedForForLongerWhereTheGraceIsLong) {
  watch_.SetGrace(absl::Minutes(10));
  Abort(0);
  EXPECT_EQ(watch_.NextDeadline() - now_, TimesForLastCalls(absl::Minutes(10)).answers);
  EXPECT_GT(watch_.NextDeadline() - now_, absl::Seconds(10));
}

TEST(TimesForLastCalls, AreNeverMoreThanHalfOfTheGraceAndContainEachOther) {
  EXPECT_EQ(TimesForLastCalls(absl::ZeroDuration()).all, absl::ZeroDuration());
  EXPECT_EQ(TimesForLastCalls(absl::Seconds(1)).all, absl::Milliseconds(500));
  for (const int seconds : {2, 5, 30}) {
    EXPECT_EQ(TimesForLastCalls(absl::Seconds(seconds)).all, absl::Seconds(1));
  }
  const LastCallsTimes times = TimesForLastCalls(absl::Minutes(30));
  EXPECT_EQ(times.all, absl::Minutes(1));
  EXPECT_LT(times.workers, times.answers);
  EXPECT_LT(times.answers, times.all);
}

TEST_F(Aborts, AreOneWhereSeveralRanksAbort) {
  Abort(0);
  Abort(5);
  EXPECT_THAT(asked_, SizeIs(3)) << "once";
  Answer(0, {}, {0, 1});
  Answer(1, {Called(2, 4096)});
  Answer(2, {Called(4, 4096)}, {5});
  EXPECT_THAT(text_, HasSubstr("ranks 0, 1 and 5 have aborted"));
  told_.clear();
  Abort(3);
  EXPECT_THAT(told_, ElementsAre(Agent(1))) << "who waits for it is told what has been said";
}

TEST_F(Aborts, ConcernNobodyInTheNextRound) {
  Abort(0);
  watch_.StartRound(kRound.Next(), {{Agent(0), "node0", 0, 2}}, now_);
  Answer(0, {Called(1, 4096)});
  Pass(absl::Hours(1));
  EXPECT_THAT(told_, IsEmpty());
  Abort(0);
  EXPECT_THAT(asked_, SizeIs(3)) << "of the round before";
}

TEST_F(Aborts, AreHeardOfMembersAboutTheirOwnRanksAlone) {
  Hear(watch_.OnWord(Agent(7), RankAborted{kRound, 0}, now_));
  Hear(watch_.OnWord(Agent(1), RankAborted{kRound, 0}, now_));
  EXPECT_THAT(asked_, IsEmpty());
  Abort(0);
  Answer(0, {Called(1, 4096), Called(1, 8192), Called(4, 8192)}, {0, 5});
  Answer(1, {});
  Answer(2, {});
  EXPECT_THAT(text_, AllOf(HasSubstr("rank 0 has aborted"), Not(HasSubstr("8192"))));
}

TEST_F(Aborts, AreNotAskedOfANodeThatTakesNoPart) {
  watch_.StartRound(kRound, {{Agent(0), "node0", 0, 2}, {Agent(1), "node1", 2, 2}}, now_);
  Summarize(0);
  Abort(0);
  EXPECT_THAT(asked_, ElementsAre(Agent(0)));
  Answer(0, {Called(1, 4096)}, {0});
  EXPECT_THAT(told_, ElementsAre(Agent(0)));
}

TEST_F(Aborts, CostNothingWhereNobodyHasAborted) {
  EXPECT_EQ(watch_.NextDeadline(), MonoTime::InfiniteFuture());
  Pass(absl::Hours(1));
  EXPECT_THAT(asked_, IsEmpty());
}

}  // namespace
}  // namespace muster::hangs
