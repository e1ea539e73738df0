// The ranks that are found to hang. The fifteen acceptance vectors of the hang watch have their
// numbers; the fourteenth, a long checkpoint, is about time (hang_judge_test.cc).
#include "rendezvous/hangs/evidence/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::hangs {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(AcceptanceVector1, NamesTheRankThatHasNotCalledTheOperation) {
  EvidenceBuilder job(8);
  const int world = job.AddWorld();
  job.AllWaitBut({3}, world, AllReduce(17)).Called(3, world, Done(AllReduce(16)));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(3));
  EXPECT_THAT(found.waiting, SizeIs(7));
  EXPECT_EQ(found.Describe(),
            "rank 3 has not called all_reduce #17 (group world, 4096 bytes f32); ranks 0-2 and 4-7 "
            "wait");
}

TEST(AcceptanceVector2, DoesNotTrustTheFirstRank) {
  EvidenceBuilder job(8);
  const int world = job.AddWorld();
  job.Waits(0, world, Of(OperationKind::kBroadcast, 5, 0));
  job.AllWaitBut({0}, world, AllReduce(5));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kMismatch);
  EXPECT_THAT(found.culprits, ElementsAre(0));
  EXPECT_FALSE(found.can_heal);
  EXPECT_GE(found.confidence, 0.9);
  EXPECT_THAT(found.Describe(), HasSubstr("rank 0 called broadcast #5"));
}

TEST(AcceptanceVector3, NamesBothSidesOfATieInSizesWithLittleConfidence) {
  EvidenceBuilder job(8);
  const int world = job.AddWorld();
  job.AllWaitBut({4, 5, 6, 7}, world, AllReduce(9, 4096));
  job.AllWaitBut({0, 1, 2, 3}, world, AllReduce(9, 8192));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kMismatch);
  EXPECT_THAT(found.culprits, SizeIs(8));
  EXPECT_EQ(found.confidence, 0.5);
  EXPECT_THAT(found.Describe(), HasSubstr("ranks 0-3 called all_reduce #9 (group world, 4096 "));
  EXPECT_THAT(found.Describe(), HasSubstr("ranks 4-7 called all_reduce #9 (group world, 8192 "));
}

TEST(AcceptanceVector4, NamesADeadRankThatHasLeftNoRecord) {
  EvidenceBuilder job(8);
  const int world = job.AddWorld();
  job.AllWaitBut({5}, world, AllReduce(3));
  job.rank(5).life = Life::kEnded;
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kEnded);
  EXPECT_THAT(found.culprits, ElementsAre(5));
  EXPECT_EQ(found.confidence, 1.0);
  EXPECT_FALSE(found.can_heal);
}

// It has called both operations, as an engine does whose gradients travel while layers add up.
TEST(Diagnose, NamesARankOnceThatIsStoppedInTheOperationsOfTwoGroups) {
  EvidenceBuilder job(4);
  const int tensor = job.AddGroup("tensor0.1", {2, 3});
  const int data = job.AddGroup("stage0.t0", {0, 2});
  job.Waits(2, tensor, AllReduce(4)).Waits(3, tensor, AllReduce(4));
  job.Waits(2, data, AllReduce(7)).Waits(0, data, AllReduce(7));
  job.rank(2).life = Life::kStopped;
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kStopped);
  EXPECT_THAT(found.culprits, ElementsAre(2));
  EXPECT_THAT(found.Describe(), HasSubstr("rank 2 is stopped by a signal"));
}

// Tensor parallel {0,1} waits for its pipeline peer 2, which waits for data-parallel member 3.
TEST(AcceptanceVector5, FollowsTheWaitingThroughOtherGroupsToTheRankThatSleeps) {
  EvidenceBuilder job(4);
  const int tensor = job.AddGroup("tp", {0, 1});
  const int pipeline = job.AddGroup("pp", {1, 2});
  const int data = job.AddGroup("dp", {2, 3});
  job.Waits(0, tensor, AllReduce(4));
  job.Waits(1, pipeline, Of(OperationKind::kRecv, 7, 1));
  job.Waits(2, data, AllReduce(11));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(3));
  EXPECT_THAT(found.waiting, ElementsAre(0, 1, 2));
  EXPECT_FALSE(found.is_direct);
  EXPECT_THAT(
      found.path,
      ElementsAre("rank 0 waits in all_reduce #4 (group tp, 4096 bytes f32) for rank 1",
                  "rank 1 waits in recv #7 from rank 1 (group pp, 4096 bytes f32) for rank 2",
                  "rank 2 waits in all_reduce #11 (group dp, 4096 bytes f32) for rank 3"));
}

TEST(AcceptanceVector6, FindsTwoGroupsThatAreUsedInOppositeOrders) {
  EvidenceBuilder job(2);
  const int a = job.AddGroup("a", {0, 1});
  const int b = job.AddGroup("b", {0, 1});
  job.Waits(0, a, AllReduce(0)).Waits(1, b, AllReduce(0));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kCircle);
  EXPECT_THAT(found.culprits, ElementsAre(0, 1));
  EXPECT_FALSE(found.can_heal);
  EXPECT_THAT(
      found.Describe(),
      HasSubstr("rank 0 waits in all_reduce #0 (group a, 4096 bytes f32) for rank 1, rank 1 "
                "waits in all_reduce #0 (group b, 4096 bytes f32) for rank 0"));
}

TEST(AcceptanceVector7, BlamesTheFaultyDeviceWhereAllHaveStarted) {
  EvidenceBuilder job(4);
  const int world = job.AddWorld();
  job.AllWaitBut({}, world, AllReduce(8));
  job.rank(2).fault = "network interface ib0 is down";
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kFault);
  EXPECT_THAT(found.culprits, ElementsAre(2));
  EXPECT_THAT(found.spoke_for_it, Contains(HasSubstr("ib0 is down")));
}

TEST(AcceptanceVector8, SeesADivergenceLongBeforeWhereTheOperationsThemselvesAgree) {
  EvidenceBuilder job(4);
  const int world = job.AddWorld();
  job.AllWaitBut({1}, world, AllReduce(20000));
  job.Waits(1, world, AllReduce(20000, 4096, /*chain=*/77));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kMismatch);
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_THAT(found.Describe(), HasSubstr("the calls before all_reduce #20000"));
}

TEST(AcceptanceVector9, NamesThePeerThatDoesNotReceiveWhatIsSent) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  job.Waits(0, world, Of(OperationKind::kSend, 3, 1));
  job.Called(1, world, Done(Of(OperationKind::kRecv, 2, 0)));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_EQ(found.operation->kind, OperationKind::kSend);
}

TEST(AcceptanceVector10, NamesTheRankThatLaunchedOnlyAPartOfACoalescedCall) {
  EvidenceBuilder job(4);
  const int world = job.AddWorld();
  for (const int64_t sequence : {5, 6, 7}) {
    for (const int r : {0, 1, 3}) job.Called(r, world, AllReduce(sequence));
  }
  for (const int r : {0, 1, 3}) job.Record(r, world).operations.back().awaited = true;
  job.Called(2, world, Done(AllReduce(5))).Called(2, world, AllReduce(6));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_THAT(found.culprits, ElementsAre(2));
  EXPECT_EQ(found.operation->sequence, 7);
}

TEST(AcceptanceVector11, NamesTheRankThatIsOneReplayOfAGraphBehind) {
  constexpr int64_t kPerReplay = 12;
  EvidenceBuilder job(4);
  const int world = job.AddWorld();
  for (const int r : {0, 1, 3}) {
    for (int64_t s = 10 * kPerReplay; s < 11 * kPerReplay; ++s) job.Called(r, world, AllReduce(s));
    job.Record(r, world).operations.back().awaited = true;
  }
  job.Called(2, world, Done(AllReduce(10 * kPerReplay - 1)));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(2));
  EXPECT_EQ(found.operation->sequence, 10 * kPerReplay);
}

TEST(AcceptanceVector12, AccusesNobodyWhereHalfOfTheRanksCannotBeHeard) {
  EvidenceBuilder job(8);
  const int world = job.AddWorld();
  job.AllWaitBut({4, 5, 6, 7}, world, AllReduce(2));
  for (const int r : {4, 5, 6, 7}) job.rank(r).life = Life::kUnreachable;
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kOutOfSight);
  EXPECT_THAT(found.culprits, IsEmpty());
  EXPECT_THAT(found.waiting, ElementsAre(0, 1, 2, 3));
}

TEST(AcceptanceVector13, DropsWhatAnotherRoundHasLeft) {
  EvidenceBuilder job(4);
  const int world = job.AddWorld();
  job.AllWaitBut({1}, world, AllReduce(900));
  for (const int r : {0, 2, 3}) job.rank(r).round = Round(1);
  EXPECT_EQ(Diagnose(job.Build()).finding, Finding::kNobodyWaits);
  job.rank(0).round = Round(2);
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_THAT(found.waiting, ElementsAre(0)) << "the others' records are of the round before";
}

// The fourteenth vector, a long checkpoint, is HangJudge's: KeepsQuietDuringALongCheckpoint.
TEST(AcceptanceVector15, FindsNobodyWhereAllGoOnSlowly) {
  EvidenceBuilder job(4);
  const int world = job.AddWorld();
  for (int r = 0; r < 4; ++r) job.Called(r, world, Done(AllReduce(40)));
  EXPECT_EQ(Diagnose(job.Build()).finding, Finding::kNobodyWaits);
}

// --- Beyond the vectors

TEST(Diagnose, FindsACircleOverThreeGroups) {
  EvidenceBuilder job(3);
  const int a = job.AddGroup("a", {0, 1});
  const int b = job.AddGroup("b", {1, 2});
  const int c = job.AddGroup("c", {2, 0});
  job.Waits(0, a, AllReduce(0)).Waits(1, b, AllReduce(0)).Waits(2, c, AllReduce(0));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kCircle);
  EXPECT_THAT(found.culprits, ElementsAre(0, 1, 2));
  EXPECT_THAT(found.path, SizeIs(3));
}

// One has started an operation and computes on; it will come to the other's in its own time.
TEST(Diagnose, TakesAnOperationThatNobodyAwaitsForNoPartOfACircle) {
  EvidenceBuilder job(2);
  const int a = job.AddGroup("a", {0, 1});
  const int b = job.AddGroup("b", {0, 1});
  job.Called(0, a, AllReduce(0)).Waits(1, b, AllReduce(0));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(0));
  EXPECT_TRUE(found.can_heal);
}

TEST(Diagnose, LeavesACircleOpenToHealingWhereRanksDoNotSayWhatTheyAwait) {
  EvidenceBuilder job(2);
  const int a = job.AddGroup("a", {0, 1});
  const int b = job.AddGroup("b", {0, 1});
  job.Called(0, a, AllReduce(0)).Called(1, b, AllReduce(0));
  for (const int r : {0, 1}) job.rank(r).tells_waits = false;
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kCircle);
  EXPECT_TRUE(found.can_heal);
}

TEST(Diagnose, NamesAStoppedRankAlsoWhereItWaitsItself) {
  EvidenceBuilder job(3);
  const int world = job.AddWorld();
  const int pair = job.AddGroup("pair", {1, 2});
  job.Waits(0, world, AllReduce(1)).Waits(1, pair, AllReduce(0));
  job.Waits(2, world, AllReduce(1));
  job.rank(1).life = Life::kStopped;
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kStopped);
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_FALSE(found.can_heal);
}

TEST(Diagnose, SaysThatAnOperationIsInsideWhereAllHaveCalledIt) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  job.AllWaitBut({}, world, AllReduce(6));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kInside);
  EXPECT_THAT(found.culprits, IsEmpty());
  EXPECT_THAT(found.waiting, ElementsAre(0, 1));
}

TEST(Diagnose, NamesAStoppedRankAlsoWhereAllHaveCalledTheOperation) {
  EvidenceBuilder job(3);
  const int world = job.AddWorld();
  job.AllWaitBut({}, world, AllReduce(0));
  job.rank(1).life = Life::kStopped;
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kStopped);
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_THAT(found.waiting, ElementsAre(0, 2));
  EXPECT_FALSE(found.can_heal);
}

TEST(Diagnose, AccusesNobodyForMembersThatItCannotSee) {
  EvidenceBuilder job(2);
  const int wide = job.AddGroup("world", {0, 1, kUnknownRank, kUnknownRank});
  job.Waits(0, wide, AllReduce(6)).Waits(1, wide, AllReduce(6));
  EXPECT_EQ(Diagnose(job.Build()).finding, Finding::kOutOfSight);
}

TEST(Diagnose, SurvivesRecordsThatMakeNoSense) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  job.Waits(0, world, Of(OperationKind::kSend, 1, 99))
      .Waits(0, world, Of(OperationKind::kRecv, 1, -7));
  job.rank(1).groups.push_back({.group = 12, .operations = {AllReduce(1)}});
  job.rank(1).groups.push_back({.group = -1, .operations = {AllReduce(1)}});
  EXPECT_FALSE(Diagnose(job.Build()).Describe().empty());
}

TEST(Diagnose, NamesWhoIsFurthestBehindWhereOnlyMarksAreKnown) {
  EvidenceBuilder job(3);
  for (const int r : {0, 1, 2}) job.rank(r).step = 6;
  job.rank(0).phase = Phase::kReduce;
  job.rank(1).phase = Phase::kIdle;  // in its data loader
  job.rank(2).phase = Phase::kBackward;
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kSilent);
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_THAT(found.waiting, ElementsAre(0, 2));
}

TEST(Diagnose, WhoIsBehindItsLastStepIsNotBehindTheOthers) {
  EvidenceBuilder job(2);
  for (const int r : {0, 1}) job.rank(r).step = 6;
  job.rank(0).phase = Phase::kUpdate;
  job.rank(1).phase = Phase::kEnd;
  EXPECT_THAT(Diagnose(job.Build()).culprits, ElementsAre(0));
  job.rank(0).phase = Phase::kIdle;
  EXPECT_EQ(Diagnose(job.Build()).finding, Finding::kNobodyWaits) << "none of them is in a step";
}

TEST(Diagnose, TakesRanksThatAllWaitForWorkForWell) {
  EvidenceBuilder job(2);
  for (const int r : {0, 1}) {
    job.rank(r).step = 6;
    job.rank(r).phase = Phase::kIdle;
  }
  EXPECT_EQ(Diagnose(job.Build()).finding, Finding::kNobodyWaits);
  job.rank(0).phase = Phase::kForward;
  job.rank(1).step.reset();  // it has marked nothing: nothing is known of it
  EXPECT_EQ(Diagnose(job.Build()).finding, Finding::kNobodyWaits);
}

}  // namespace
}  // namespace muster::hangs
