#include "rendezvous/hangs/judge/node_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Incarnation kFirst(11);
constexpr Incarnation kSecond(12);

// Ranks 0 and 1, 2 to 4.
class NodeTableTest : public ::testing::Test {
 protected:
  NodeTableTest() {
    table_.StartRound(Round(1), {{.agent = kFirst, .first_rank = 0, .num_ranks = 2},
                                 {.agent = kSecond, .first_rank = 2, .num_ranks = 3}});
  }
  static NodeSummary Silent(absl::Duration silent_for) {
    return {.round = Round(1),
            .hang_timeout = silent_for,
            .silent = {{.first_rank = 0, .silent_for = silent_for}},
            .silence_at_start = silent_for};
  }

  NodeTable table_;
};

TEST_F(NodeTableTest, FindsTheNodeOfARank) {
  EXPECT_EQ(table_.OfRank(1)->about.agent, kFirst);
  EXPECT_EQ(table_.OfRank(4)->about.agent, kSecond);
  EXPECT_EQ(table_.OfRank(5), nullptr);
  EXPECT_EQ(table_.OfRank(-1), nullptr);
  EXPECT_THAT(table_.OfRanks({0, 1, 4, 9}), ElementsAre(kFirst, kSecond));
  EXPECT_EQ(table_.Find(Incarnation(13)), nullptr);
}

TEST_F(NodeTableTest, SpeaksToThoseThatHaveSaidAWord) {
  EXPECT_THAT(table_.TellAll(SayRecovery{}), IsEmpty());
  table_.Take(kSecond, Silent(absl::ZeroDuration()));
  ASSERT_THAT(table_.TellAll(SayRecovery{}), SizeIs(1));
  EXPECT_EQ(table_.TellAll(SayRecovery{})[0].to, kSecond);
}

TEST_F(NodeTableTest, KnowsWhetherSomebodyIsSilentAsTheNewestWordsSay) {
  table_.Take(kFirst, Silent(kSuspiciousSilence));
  table_.Take(kSecond, Silent(kSuspiciousSilence));
  EXPECT_TRUE(table_.IsSomebodySilent());
  EXPECT_TRUE(table_.IsStartSilent());
  table_.Take(kFirst, Silent(absl::ZeroDuration()));
  EXPECT_TRUE(table_.IsSomebodySilent());
  EXPECT_FALSE(table_.IsStartSilent()) << "the node of rank 0 alone tells of the start";
  table_.Take(kSecond, Silent(absl::ZeroDuration()));
  EXPECT_FALSE(table_.IsSomebodySilent());
  EXPECT_EQ(table_.hang_timeout(), kSuspiciousSilence) << "the most patient counts";
}

TEST_F(NodeTableTest, KeepsWhatMembersHaveLearnedOverRounds) {
  LearnedSilences learned;
  learned.counts = {{.count = 7}};
  EXPECT_EQ(table_.TakeLearned(kFirst, learned), LearnedSilences());
  table_.StartRound(Round(2), {{.agent = kFirst}});
  EXPECT_EQ(table_.TakeLearned(kFirst, learned), learned);
  table_.StartRound(Round(3), {{.agent = kSecond}});
  table_.StartRound(Round(4), {{.agent = kFirst}});
  EXPECT_EQ(table_.TakeLearned(kFirst, learned), LearnedSilences()) << "it had left";
}

}  // namespace
}  // namespace muster::hangs
