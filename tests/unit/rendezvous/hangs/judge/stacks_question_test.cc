#include "rendezvous/hangs/judge/stacks_question.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr Round kRound(2);

class StacksQuestionTest : public ::testing::Test {
 protected:
  // Ranks 0 and 1 wait for rank 2, whose node is asked, too.
  StacksQuestionTest() {
    Verdict verdict{.reason = "it is a test", .since_detected = absl::Seconds(10)};
    verdict.diagnosis = {.finding = Finding::kNotCalled, .culprits = {2}, .waiting = {0, 1}};
    const auto orders =
        question_.Ask({.question = 7, .round = kRound}, {node_.agent}, std::move(verdict), now_);
    EXPECT_THAT(orders, SizeIs(1));
    question_.Expect({.rank = 0});
    question_.Expect({.rank = 2, .pid = 1});
  }
  SayVerdict Make() const {
    return question_.MakeVerdict({}, "; and more", now_ + absl::Seconds(3));
  }
  static std::vector<int> RanksOf(const SayVerdict& say) {
    std::vector<int> ranks;
    for (const RankReport& rank : say.ranks) ranks.push_back(rank.rank);
    return ranks;
  }

  const MonoTime now_ = MonoTime::At(absl::Hours(1));
  const WatchedNode node_{Incarnation(12), "node1", 2, 2};
  StacksQuestion question_;
};

TEST_F(StacksQuestionTest, MakesAVerdictOfWhatNodesHaveShown) {
  question_.Take(node_, {.question = 7,
                         .round = kRound,
                         .ranks = {{.rank = 2, .pid = 7, .frames = {"f"}},
                                   {.rank = 0, .pid = 8},
                                   {.rank = 3, .pid = 9}}});
  EXPECT_FALSE(question_.HasMoved());
  EXPECT_TRUE(question_.poll().HasAnswered(Incarnation(12)));
  const SayVerdict say = Make();
  EXPECT_EQ(say.question, 7);
  EXPECT_EQ(say.round, kRound);
  EXPECT_THAT(RanksOf(say), ElementsAre(2, 0, 3)) << "those at fault first";
  EXPECT_EQ(say.ranks[0].pid, 7);
  EXPECT_EQ(say.ranks[0].node, "node1");
  EXPECT_EQ(say.ranks[1].pid, 0) << "rank 0 is of another node";
  EXPECT_THAT(say.to_end, ElementsAre(2));
  EXPECT_EQ(say.reason, "it is a test; and more");
  EXPECT_EQ(say.since_detected, absl::Seconds(13));
  EXPECT_EQ(say.since_decided, absl::Seconds(3));
}

TEST_F(StacksQuestionTest, EndsOneThatWaitsWhereTheRankAtFaultHasEnded) {
  question_.Take(node_, {.question = 7, .round = kRound, .ranks = {{.rank = 2, .pid = 0}}});
  EXPECT_THAT(Make().to_end, ElementsAre(0));
}

TEST_F(StacksQuestionTest, FindsThatARankHasMovedAlsoIntoAnotherRound) {
  question_.Take(node_, {.question = 7, .round = Round(3)});
  EXPECT_TRUE(question_.HasMoved());
}

TEST_F(StacksQuestionTest, SaysWhatWasKnownBeforeWhereNothingCame) {
  const SayVerdict say = Make();
  EXPECT_THAT(say.ranks, SizeIs(2));
  EXPECT_THAT(say.to_end, ElementsAre(2));
}

}  // namespace
}  // namespace muster::hangs
