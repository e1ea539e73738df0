#include "rendezvous/hangs/judge/details_question.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Round kRound(2);
constexpr Incarnation kFirst(11);
constexpr Incarnation kSecond(12);

// Ranks 0 and 1 are of node0, 2 and 3 of node1.
class DetailsQuestionTest : public ::testing::Test {
 protected:
  DetailsQuestionTest() {
    nodes_.StartRound(kRound, {{kFirst, "node0", 0, 2}, {kSecond, "node1", 2, 2}});
    for (const Incarnation agent : {kFirst, kSecond}) {
      nodes_.Take(agent, {.round = kRound,
                          .silent = {{.first_rank = 0, .num_ranks = 4, .silent_for = kSilent}}});
    }
    question_.Ask(kQuestion, nodes_, MonoTime());
  }
  void Answer(Incarnation agent, const std::vector<int>& ranks, std::vector<Gathering> told = {}) {
    NodeDetails details{.question = kQuestion, .gatherings = std::move(told)};
    details.evidence.round = kRound;
    for (const int rank : ranks) {
      details.evidence.ranks.push_back({.rank = rank, .round = kRound, .node = "a liar"});
    }
    question_.Take(nodes_.Find(agent)->about, std::move(details));
  }
  std::vector<int> RanksOfEvidence() const {
    std::vector<int> ranks;
    for (const RankEvidence& rank : question_.evidence().ranks) ranks.push_back(rank.rank);
    return ranks;
  }

  static constexpr uint64_t kQuestion = 5;
  static constexpr absl::Duration kSilent = absl::Seconds(9);
  NodeTable nodes_;
  DetailsQuestion question_;
};

TEST_F(DetailsQuestionTest, BelievesANodeOfItsOwnRanksAlone) {
  Answer(kSecond, {0, 2, 3, 3, 7}, {{.name = "barrier"}});
  EXPECT_THAT(RanksOfEvidence(), ElementsAre(2, 3));
  EXPECT_EQ(question_.evidence().ranks[0].node, "node1");
  EXPECT_THAT(question_.gatherings(), IsEmpty()) << "they are of the node of rank 0";
  const std::vector<RankSilence> silences = question_.Silences(nodes_);
  ASSERT_THAT(silences, SizeIs(2));
  EXPECT_EQ(silences[0], (RankSilence{2, WatchPhase::kStep, kSilent}));
}

TEST_F(DetailsQuestionTest, KnowsWhatItDoesNotSee) {
  Answer(kFirst, {0, 1}, {{.name = "barrier"}});
  EXPECT_THAT(question_.gatherings(), SizeIs(1));
  EXPECT_EQ(question_.DescribeUnseen(nodes_),
            "; nothing is known of ranks 2 and 3 on node1 (its agent does not answer)");
  question_.Finish(nodes_);
  EXPECT_THAT(RanksOfEvidence(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(question_.evidence().ranks[3].life, Life::kUnreachable);
  absl::btree_set<Incarnation> selected;
  question_.Select(nodes_, {3, 0}, 2, selected);
  EXPECT_THAT(selected, ElementsAre(kFirst)) << "the other has not answered";
}

TEST_F(DetailsQuestionTest, DescribesTheFirstFewOfThoseAtFault) {
  Answer(kFirst, {0, 1});
  Answer(kSecond, {2, 3});
  question_.Finish(nodes_);
  const Diagnosis diagnosis{.culprits = {1, 3}, .waiting = {0}};
  const std::vector<RankReport> named = question_.ReportsOfNamed(diagnosis);
  ASSERT_THAT(named, SizeIs(2));
  EXPECT_EQ(named[0].rank, 1);
  EXPECT_EQ(named[1].node, "node1");
  EXPECT_EQ(named[1].phase, "") << "it has marked none";
}

TEST_F(DetailsQuestionTest, IsHeldByOneDebugger) {
  NodeDetails held{.question = kQuestion, .is_held = true};
  question_.Take(nodes_.Find(kSecond)->about, std::move(held));
  Answer(kFirst, {0, 1});
  EXPECT_TRUE(question_.IsHeld());
  question_.Ask(kQuestion + 1, nodes_, MonoTime());
  EXPECT_FALSE(question_.IsHeld());
  EXPECT_FALSE(question_.poll().HasAnswered(kFirst));
}

}  // namespace
}  // namespace muster::hangs
