#include "agent/core/worker_group.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/core/turn_fixture.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;

class WorkerGroupTest : public TurnTest {
 protected:
  WorkerGroupTest() {
    workers_.Begin(TwoWorkers());
    for (const int rank : {0, 1}) workers_.Note(Spawned(rank), turn_);
  }
  WorkerGroup::News Say(int local_rank, WorkerPromised promise) {
    promise.round = Round(0);
    promise.local_rank = LocalRank(local_rank);
    return workers_.Note(promise);
  }
  // Both survive; the first awaits the next round.
  void ParkTheFirst() {
    Say(0, {.survives = true});
    Say(1, {.survives = true});
    workers_.KeepSurvivors("rank 3 failed", turn_);
    Say(0, {.survives = true, .awaits_round = true});
    Effects();
  }
  WorkerGroup workers_;
};

TEST_F(WorkerGroupTest, CountsThoseThatLive) {
  EXPECT_EQ(workers_.NumAlive(), 2);
  workers_.NoteEnd(LocalRank(1));
  EXPECT_EQ(workers_.NumAlive(), 1);
  workers_.NoteEndOfAll();
  EXPECT_EQ(workers_.NumRunning(), 0);
}

TEST_F(WorkerGroupTest, IsOfTheRoundThatItHasBegun) {
  EXPECT_TRUE(workers_.IsOf(Round(0)));
  workers_.Begin(TwoWorkers(1));
  EXPECT_FALSE(workers_.IsOf(Round(0)));
}

TEST_F(WorkerGroupTest, ObeysOnceEachThatLivesDoes) {
  EXPECT_TRUE(Say(0, {.obeys = true}).begins_to_obey);
  EXPECT_FALSE(Say(0, {.obeys = true}).begins_to_obey) << "it has said so before";
  EXPECT_FALSE(workers_.AllObey());
  workers_.NoteEnd(LocalRank(1));
  EXPECT_TRUE(workers_.AllObey());
}

TEST_F(WorkerGroupTest, HasAFloorOnceEachHasPromisedAndThatIsTheFurthest) {
  Say(0, {.floor = 7});
  EXPECT_EQ(workers_.StopFloor(), std::nullopt);
  Say(1, {.floor = -1});
  EXPECT_THAT(workers_.StopFloor(), Optional(7));
}

TEST_F(WorkerGroupTest, KnowsHowLongAgoAWorkerFailed) {
  workers_.NoteFailure({.exit_code = 3, .age = absl::Seconds(2)}, now());
  Pass(absl::Seconds(5));
  EXPECT_TRUE(workers_.has_failed());
  ASSERT_THAT(workers_.FailuresAt(now()), SizeIs(1));
  EXPECT_EQ(workers_.FailuresAt(now())[0].age, absl::Seconds(7));
  EXPECT_EQ(workers_.Failures()[0].age, absl::Seconds(2)) << "as it was told";
  workers_.Begin(TwoWorkers(1));
  EXPECT_FALSE(workers_.has_failed()) << "failures are of one round";
}

TEST_F(WorkerGroupTest, SaysWhoIsStoppedWithAFailedWorkerAndWhoGoesOn) {
  workers_.NoteEnd(LocalRank(0));
  EXPECT_EQ(workers_.WhatFollows("node1"), "; stopping the other 1 on node1");
  Say(1, {.survives = true});
  EXPECT_EQ(workers_.WhatFollows("node1"), "; 1 on node1 would go on in the next round");
  workers_.NoteEnd(LocalRank(1));
  EXPECT_EQ(workers_.WhatFollows("node1"), "");
}

TEST_F(WorkerGroupTest, KeepsThoseThatSurviveAndTellsThemWhy) {
  workers_.KeepSurvivors("rank 3 failed", turn_);
  EXPECT_THAT(Effects(), IsEmpty()) << "nobody survives";
  Say(1, {.survives = true});
  workers_.KeepSurvivors("rank 3 failed", turn_);
  EXPECT_THAT(workers_.Kept(), ElementsAre(LocalRank(1)));
  EXPECT_THAT(Effects(), ElementsAre("tell_round_over followed=yes reason=\"rank 3 failed\""));
}

TEST_F(WorkerGroupTest, CountsAParkedWorkerAsAliveAndNotAsRunning) {
  ParkTheFirst();
  EXPECT_EQ(workers_.NumAlive(), 2);
  EXPECT_EQ(workers_.NumRunning(), 1);
}

TEST_F(WorkerGroupTest, GivesUpThoseThatDoNotLetGoAndSparesTheOthers) {
  ParkTheFirst();
  EXPECT_TRUE(workers_.GiveUpSlow(now(), turn_));
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("local rank 1 on node1 would go on"),
                                     "signal_workers SIGTERM spared=0"));
  EXPECT_THAT(workers_.Kept(), ElementsAre(LocalRank(0)));
  EXPECT_FALSE(workers_.GiveUpSlow(now(), turn_)) << "nobody is slow any more";
}

TEST_F(WorkerGroupTest, KeepsOnlyTheParkedFromSigkillOn) {
  ParkTheFirst();
  workers_.KeepParkedOnly();
  EXPECT_THAT(workers_.Kept(), ElementsAre(LocalRank(0)));
}

TEST_F(WorkerGroupTest, NoticesAParkedWorkerThatStrays) {
  ParkTheFirst();
  EXPECT_FALSE(Say(1, {.survives = true}).has_strayed) << "it was not parked";
  EXPECT_TRUE(Say(0, {}).has_strayed);
  EXPECT_EQ(workers_.NumRunning(), 2);
}

TEST_F(WorkerGroupTest, ReleasesThoseThatAreNamedAndSparesTheOthers) {
  ParkTheFirst();
  EXPECT_THAT(workers_.Release({LocalRank(0)}), ElementsAre(LocalRank(1)));
  EXPECT_THAT(workers_.Kept(), ElementsAre(LocalRank(1)));
}

TEST_F(WorkerGroupTest, GivesAParkedWorkerItsPlaceInTheNextRound) {
  ParkTheFirst();
  workers_.NoteEnd(LocalRank(1));
  workers_.LeaveRound();
  EXPECT_EQ(workers_.NumAlive(), 1);
  EXPECT_THAT(workers_.Begin(TwoWorkers(1)), ElementsAre(LocalRank(0)));
  EXPECT_EQ(workers_.NumRunning(), 2) << "nobody of the new round is parked";
}

TEST_F(WorkerGroupTest, EndsAWorkerThatDoesNotComeToTheRoundItAwaited) {
  ParkTheFirst();
  workers_.Begin(TwoWorkers(1));
  for (const int rank : {0, 1}) workers_.Note(Spawned(rank, 1), turn_);
  EXPECT_EQ(workers_.HelloDeadline(), now() + options_.hello_timeout);
  workers_.EndThoseThatDoNotCome(turn_);
  EXPECT_THAT(Effects(), IsEmpty()) << "it has its time";
  Pass(options_.hello_timeout);
  workers_.EndThoseThatDoNotCome(turn_);
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("end_worker 0")));
  EXPECT_TRUE(workers_.HelloDeadline().is_infinite()) << "once";
}

TEST_F(WorkerGroupTest, WaitsNoMoreForAWorkerThatHasSaidHello) {
  ParkTheFirst();
  workers_.Begin(TwoWorkers(1));
  workers_.Note(Spawned(0, 1), turn_);
  workers_.Note(WorkerGreeted{.round = Round(1), .local_rank = LocalRank(0)});
  EXPECT_TRUE(workers_.HelloDeadline().is_infinite());
}

TEST_F(WorkerGroupTest, ExpectsNoHelloOfAnotherProcessInTheParkedOnesPlace) {
  ParkTheFirst();
  workers_.Begin(TwoWorkers(1));
  workers_.Note(
      WorkerSpawned{.round = Round(1), .local_rank = LocalRank(0), .pid = kFirstPid + 100}, turn_);
  EXPECT_TRUE(workers_.HelloDeadline().is_infinite());
}

// A worker's socket may be quicker than the guardian that tells its process id.
TEST_F(WorkerGroupTest, KeepsAPromiseThatComesBeforeTheProcessId) {
  workers_.Begin(TwoWorkers(1));
  Say(1, {.survives = true});
  for (const int rank : {0, 1}) workers_.Note(Spawned(rank, 1), turn_);
  workers_.KeepSurvivors("rank 3 failed", turn_);
  EXPECT_THAT(workers_.Kept(), ElementsAre(LocalRank(1)));
}

TEST_F(WorkerGroupTest, NamesThoseThatOutliveSigkillButNotTheParked) {
  ParkTheFirst();
  workers_.NoteUnkillable();
  EXPECT_THAT(workers_.unkillable_pids(), ElementsAre(kFirstPid + 1));
}

}  // namespace
}  // namespace muster::agent
