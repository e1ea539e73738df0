#include "agent/watch/board_evidence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/verdict/diagnosis.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

BoardSnapshot::Record Call(uint64_t ticket, uint16_t group, int64_t sequence, OperationState state,
                           bool awaited = false) {
  return {.ticket = ticket,
          .group = group,
          .kind = OperationKind::kAllReduce,
          .dtype = "f32",
          .state = state,
          .awaited = awaited,
          .sequence = sequence,
          .bytes = 64};
}

WatchedRank RankIn(int rank, const std::vector<BoardSnapshot::Group>& groups) {
  WatchedRank out{.rank = rank, .pid = 100 + rank};
  out.board.pid = out.pid;
  out.board.groups = groups;
  return out;
}

TEST(MakeEvidence, TakesAGroupOfAllRanksForTheJob) {
  const verdict::Evidence evidence =
      MakeEvidence(Round(1), 4, {RankIn(2, {{.name = "world", .rank = 2, .size = 4}})});
  ASSERT_THAT(evidence.groups, SizeIs(1));
  EXPECT_THAT(evidence.groups[0].members, ElementsAre(0, 1, 2, 3));
}

TEST(MakeEvidence, LearnsTheMembersOfASmallerGroupFromThemselves) {
  const verdict::Evidence evidence =
      MakeEvidence(Round(1), 4,
                   {RankIn(1, {{.name = "dp", .id = 9, .rank = 0, .size = 2}}),
                    RankIn(2, {{.name = "dp", .id = 8, .rank = 0, .size = 2}}),
                    RankIn(3, {{.name = "dp", .id = 9, .rank = 1, .size = 2}})});
  ASSERT_THAT(evidence.groups, SizeIs(2)) << "one name, two ids";
  EXPECT_THAT(evidence.groups[0].members, ElementsAre(1, 3));
  EXPECT_THAT(evidence.groups[1].members, ElementsAre(2, verdict::kUnknownRank));
}

TEST(MakeEvidence, KeepsWhatWaitsAndTheLastFewCalls) {
  WatchedRank rank = RankIn(0, {{.name = "world", .rank = 0, .size = 2, .num_issued = 1000}});
  rank.board.operations.push_back(Call(0, 0, 0, OperationState::kStarted));
  for (int s = 1; s < 1000; ++s)
    rank.board.operations.push_back(Call(s, 0, s, OperationState::kDone));
  const verdict::Evidence evidence = MakeEvidence(Round(1), 2, {rank});
  const auto& operations = evidence.ranks[0].groups[0].operations;
  ASSERT_THAT(operations, SizeIs(9));
  EXPECT_EQ(operations.front().sequence, 0);
  EXPECT_EQ(operations.back().sequence, 999);
}

TEST(MakeEvidence, LeadsToTheRankThatIsMissing) {
  WatchedRank waiting = RankIn(0, {{.name = "world", .rank = 0, .size = 2, .num_issued = 6}});
  waiting.board.operations = {Call(5, 0, 5, OperationState::kStarted, /*awaited=*/true)};
  const WatchedRank missing = RankIn(1, {{.name = "world", .rank = 1, .size = 2, .num_issued = 5}});
  const verdict::Diagnosis found = Diagnose(MakeEvidence(Round(1), 2, {waiting, missing}));
  EXPECT_EQ(found.finding, verdict::Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(1));
}

TEST(MakeEvidence, DropsGroupsThatAWorkerHasSpoilt) {
  const verdict::Evidence evidence =
      MakeEvidence(Round(1), 2,
                   {RankIn(0, {{.name = "a", .rank = 5, .size = 2},
                               {.name = "b", .rank = 0, .size = 1 << 30},
                               {.name = "c", .rank = -1, .size = 2},
                               {.name = "", .rank = 0, .size = 2}})});
  EXPECT_THAT(evidence.groups, IsEmpty());
}

TEST(PhaseInWords, NamesPhaseAndStep) {
  EXPECT_EQ(PhaseInWords(Phase::kReduce, 7), "is in phase reduce of step 7");
  EXPECT_EQ(PhaseInWords(Phase::kIdle, 8), "is between steps, before step 8");
  EXPECT_EQ(PhaseInWords(Phase::kStarting, std::nullopt), "has marked no phase");
}

}  // namespace
}  // namespace muster::agent
