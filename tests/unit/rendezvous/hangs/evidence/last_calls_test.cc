#include "rendezvous/hangs/evidence/last_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::hangs {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

Call In(const std::string& group, Operation operation) {
  operation.chain = 0;  // PyTorch tells of none
  return {.group = group, .label = group, .operation = std::move(operation)};
}
Call World(int64_t sequence, int64_t bytes = 4096) {
  return In("world", AllReduce(sequence, bytes));
}

RankCalls Of(int rank, std::vector<Call> calls, absl::Duration age = {}) {
  return {.rank = rank, .age = age, .calls = std::move(calls)};
}

TEST(CompareLastCalls, NamesWhoHasCalledWhichSizeAsTheSameOperation) {
  const AbortReport report =
      CompareLastCalls({0}, 4,
                       {Of(1, {World(5), World(6)}), Of(2, {World(5), World(6)}),
                        Of(3, {World(5), World(6, 8192)})});
  ASSERT_THAT(report.differences, SizeIs(2));
  EXPECT_THAT(report.differences[0].ranks, ElementsAre(1, 2));
  EXPECT_THAT(report.differences[1].ranks, ElementsAre(3));
  EXPECT_EQ(report.differences[1].operation.bytes, 8192);
  EXPECT_THAT(report.unknown, ElementsAre(0));
  EXPECT_EQ(InWords(report),
            "rank 3 called all_reduce #6 (group world, 8192 bytes f32) where ranks 0-2 called "
            "all_reduce #6 (group world, 4096 bytes f32), which no wait can heal: rank 0 has "
            "aborted and is not at fault.");
}

// --- Whose call it was

AbortReport Aborted(int rank, int world_size, const std::vector<RankCalls>& others) {
  return CompareLastCalls({rank}, world_size, others);
}

TEST(FindBlame, IsOfTheOddSizeAndNotOfTheRankThatAborted) {
  const AbortReport report =
      Aborted(2, 4, {Of(0, {World(6)}), Of(1, {World(6)}), Of(3, {World(6, 8192)})});
  const AbortBlame blame = FindBlame(report, /*is_of_size=*/true);
  EXPECT_THAT(blame.at_fault, ElementsAre(3));
  EXPECT_EQ(blame.words,
            "rank 3 called all_reduce #6 (group world, 8192 bytes f32) where ranks 0-2 called "
            "all_reduce #6 (group world, 4096 bytes f32)");
}

// It receives more than it expects, so it has called the smaller of two sizes.
TEST(FindBlame, CountsARankThatAbortedAmongThoseWithTheSmallerSize) {
  const AbortReport report = Aborted(1, 3, {Of(0, {World(6)}), Of(2, {World(6, 8192)})});
  EXPECT_THAT(FindBlame(report, true).at_fault, ElementsAre(2));
  const AbortReport tie =
      Aborted(2, 4, {Of(0, {World(6)}), Of(1, {World(6, 8192)}), Of(3, {World(6, 8192)})});
  EXPECT_THAT(FindBlame(tie, true).at_fault, IsEmpty());
  EXPECT_THAT(FindBlame(tie, true).words, HasSubstr("which of them is right cannot be told"));
}

TEST(FindBlame, IsOfTheRankThatAbortedWhereAllOthersAgreeAndGlooHasEndedIt) {
  const AbortReport report =
      Aborted(2, 3, {Of(0, {World(6)}), Of(1, {World(6)}), Of(2, {World(5)}, absl::Seconds(1))});
  EXPECT_THAT(FindBlame(report, /*is_of_size=*/true).at_fault, ElementsAre(2));
  EXPECT_EQ(FindBlame(report, true).words,
            "rank 2 called all_reduce #6 (group world) with less than the 4096 bytes of ranks 0 "
            "and 1");
  EXPECT_THAT(FindBlame(report, /*is_of_size=*/false).at_fault, IsEmpty())
      << "it may have aborted for any reason";
}

TEST(FindBlame, OfTwoRanksIsNotKnown) {
  EXPECT_THAT(FindBlame(Aborted(0, 2, {Of(1, {World(6, 8192)})}), true).at_fault, IsEmpty());
}

TEST(FindBlame, OfOtherOperationsIsTheMinoritysAmongThoseThatAreKnown) {
  const Call gather = In("world", Operation{.kind = OperationKind::kAllGather,
                                            .state = OperationState::kStarted,
                                            .sequence = 6});
  const AbortReport report = Aborted(2, 4, {Of(0, {World(6)}), Of(1, {gather}), Of(3, {World(6)})});
  EXPECT_THAT(FindBlame(report, true).at_fault, ElementsAre(1));
}

constexpr char kGloosWords[] =
    "[enforce fail at pair.cc:464] op.preamble.length <= op.nbytes. 8 vs 4. "
    "Received data size doesn't match expected size. Is there a ...";

TEST(TellWhoEnded, NamesTheOtherRankOrThatThisOneMayBeInnocent) {
  const auto told = [](const AbortReport& report, const char* output) {
    WorkerFailure failure{.rank = Rank(2), .last_output = output};
    TellWhoEnded(report, failure);
    return failure.ended_by + "/" + failure.message;
  };
  const RankCalls more = Of(1, {World(6, 8192)});
  EXPECT_THAT(told(Aborted(2, 4, {Of(0, {World(6)}), more, Of(3, {World(6)})}), kGloosWords),
              StartsWith("rank 1 called all_reduce #6"));
  EXPECT_EQ(told(Aborted(2, 3, {more}), kGloosWords),
            "/Gloo aborts a rank that receives more than it expects, so rank 2 may be innocent");
  EXPECT_EQ(told(Aborted(2, 4, {more}), "double free or corruption"), "/")
      << "it has aborted for its own reasons";
  EXPECT_EQ(told(Aborted(3, 4, {more}), kGloosWords), "/") << "another rank has";
}

TEST(IsOfSize, KnowsGloosWords) {
  EXPECT_TRUE(IsOfSize(kGloosWords));
  EXPECT_FALSE(IsOfSize("Assertion failed"));
}

TEST(CompareLastCalls, FindsADifferenceThatARankHasLeftBehind) {
  const AbortReport report = CompareLastCalls(
      {0}, 3, {Of(1, {World(6), World(7)}), Of(2, {World(6, 8192)}), Of(0, {World(5)})});
  ASSERT_THAT(report.differences, SizeIs(2));
  EXPECT_EQ(report.differences[0].operation.sequence, 6);
  EXPECT_THAT(report.last, SizeIs(3));
  EXPECT_THAT(InWords(report),
              HasSubstr("Last calls: rank 0 called all_reduce #5 (group world, 4096 "
                        "bytes f32); rank 1 called all_reduce #7"));
}

TEST(CompareLastCalls, TellsOperationsOfOneNumberApartByTheirGroup) {
  const AbortReport report = CompareLastCalls(
      {0}, 2, {Of(0, {In("left", AllReduce(6))}), Of(1, {In("right", AllReduce(6, 8192))})});
  EXPECT_THAT(report.differences, IsEmpty());
  EXPECT_THAT(InWords(report), Not(HasSubstr("heal")));
}

TEST(CompareLastCalls, TakesTheDifferenceOfTheMostRanks) {
  const AbortReport report =
      CompareLastCalls({0}, 5,
                       {Of(0, {In("left", AllReduce(1, 1)), World(6)}),
                        Of(1, {In("left", AllReduce(1, 2)), World(6)}), Of(2, {World(6, 8)})});
  ASSERT_THAT(report.differences, SizeIs(2));
  EXPECT_EQ(report.differences[0].label, "world");
}

TEST(CompareLastCalls, SaysHowOldAnAnswerIsWhereTheRankHasGone) {
  const AbortReport report = CompareLastCalls(
      {0}, 3, {Of(1, {World(6, 8192)}), Of(0, {World(5)}, absl::Milliseconds(1300)), Of(2, {})});
  EXPECT_THAT(report.differences, IsEmpty());
  EXPECT_THAT(
      InWords(report),
      AllOf(HasSubstr("Last calls: rank 1 called all_reduce #6 (group world, 8192 bytes f32); "
                      "rank 0 had called all_reduce #5 (group world, 4096 bytes f32) when "
                      "asked 1.3s earlier."),
            HasSubstr("What rank 2 called is not known.")));
}

TEST(CompareLastCalls, KeepsApartWhatIsOldAlsoWhereItIsTheSame) {
  const AbortReport report =
      CompareLastCalls({0}, 2, {Of(0, {World(5)}, absl::Seconds(1)), Of(1, {World(5)})});
  ASSERT_THAT(report.last, SizeIs(2));
  EXPECT_THAT(report.last[0].ranks, ElementsAre(1));
  EXPECT_EQ(report.last[1].age, absl::Seconds(1));
}

TEST(CompareLastCalls, SaysNothingWhereNothingIsKnown) {
  EXPECT_EQ(InWords(CompareLastCalls({1}, 3, {})), "");
  EXPECT_EQ(InWords(CompareLastCalls({1}, 3, {Of(0, {})})), "");
}

TEST(CompareLastCalls, BoundsWhatItSaysOfManyRanks) {
  std::vector<RankCalls> ranks;
  for (int rank = 0; rank < 1000; ++rank) {
    ranks.push_back(Of(rank, {World(6, rank < 900 ? 8 : rank)}));
  }
  const AbortReport report = CompareLastCalls({1000}, 1001, ranks);
  EXPECT_THAT(report.differences, SizeIs(kSameCallsMax));
  EXPECT_THAT(report.last, SizeIs(kSameCallsMax));
  EXPECT_THAT(report.differences[0].ranks, SizeIs(900)) << "the most ranks first";
}

}  // namespace
}  // namespace muster::hangs
