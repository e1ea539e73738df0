#include "agent/core/stop_ladder.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "tests/unit/agent/core/turn_fixture.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StopLadderTest : public TurnTest {
 protected:
  StopLadderTest() {
    workers_.Begin(TwoWorkers());
    for (const int rank : {0, 1}) workers_.Note(Spawned(rank), turn_);
  }
  void Start(After after, const std::string& kept_for = "") {
    ladder_.Aim(after);
    ladder_.SetGrace(now() + options_.settings.shutdown_timeout);
    ladder_.Start(SIGTERM, kept_for, workers_, turn_);
  }
  void Say(int local_rank, bool awaits) {
    workers_.Note(WorkerPromised{.round = Round(0),
                                 .local_rank = LocalRank(local_rank),
                                 .survives = true,
                                 .awaits_round = awaits});
  }
  // Climbs at the deadline of the rung, on to the next.
  bool Climb() {
    turn_.now = ladder_.deadline();
    return ladder_.Climb(workers_, turn_);
  }
  WorkerGroup workers_;
  StopLadder ladder_;
};

TEST_F(StopLadderTest, LeadsFromTheSignalToTheGroundWhateverNeverEnds) {
  const MonoTime start = now();
  Start(After::kJoin);
  EXPECT_THAT(Effects(), ElementsAre("signal_workers SIGTERM"));
  EXPECT_TRUE(ladder_.has_signalled());
  EXPECT_FALSE(Climb());
  EXPECT_THAT(Effects(), ElementsAre("signal_workers SIGKILL"));
  EXPECT_TRUE(ladder_.awaits_workers());
  EXPECT_FALSE(Climb());
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("pid 700, 701 on node1 did not end within 10s"),
                                     "sweep_descendants SIGKILL"));
  EXPECT_FALSE(ladder_.awaits_workers());
  EXPECT_FALSE(Climb());
  EXPECT_THAT(Effects(), ElementsAre("name_descendants"));
  ladder_.NoteLeftovers({.names = {"cat (pid 7)", "dd (pid 8)"}}, turn_);
  EXPECT_TRUE(Climb());
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("SIGKILL does not end what the workers left behind "
                                               "on node1: cat (pid 7), dd (pid 8) (a device")));
  EXPECT_EQ(now() - start, options_.settings.shutdown_timeout + 2 * options_.unkillable_timeout);
}

// The processes that load a rank's data would die before the checkpoint that it writes.
TEST_F(StopLadderTest, LeavesRanksThatHandleTheSignalHalfOfTheGraceWithTheirGroups) {
  const auto group_after = [&](int signal) {
    ladder_.SetGrace(now() + absl::Seconds(30));
    ladder_.Start(signal, "", workers_, turn_);
    const absl::Duration after = std::get<SignalWorkers>(turn_.effects.back()).group_at - now();
    Effects();
    return after;
  };
  EXPECT_EQ(group_after(SIGTERM), absl::Seconds(15));
  EXPECT_EQ(group_after(SIGUSR1), absl::Seconds(15));
  EXPECT_EQ(group_after(SIGINT), absl::ZeroDuration());
}

// A machine that was suspended tells the deadline before the ends of its processes.
TEST_F(StopLadderTest, GivesNothingUpWhileItsOwnProcessDidNotRun) {
  Start(After::kJoin);
  EXPECT_FALSE(Climb());
  Effects();
  turn_.now = ladder_.deadline() + absl::Seconds(20);
  EXPECT_FALSE(ladder_.Climb(workers_, turn_));
  EXPECT_THAT(Effects(), IsEmpty());
  EXPECT_EQ(ladder_.deadline(), now() + absl::Seconds(1));
  EXPECT_TRUE(ladder_.awaits_workers());
  EXPECT_FALSE(Climb());
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("pid 700, 701 on node1 did not end"),
                                     "sweep_descendants SIGKILL"));
  Pass(absl::Minutes(1));
  EXPECT_FALSE(ladder_.Climb(workers_, turn_));
  EXPECT_THAT(Effects(), IsEmpty());
}

TEST_F(StopLadderTest, SweepsWhatIsLeftAfterAFailureBySigtermThenBySigkill) {
  Start(After::kAsk);
  workers_.NoteEndOfAll();
  ladder_.BeginSweep(turn_);
  EXPECT_THAT(Effects(), ElementsAre("signal_workers SIGTERM", "sweep_descendants SIGTERM"));
  EXPECT_EQ(ladder_.deadline(), now() + options_.lost_peer_grace);
  EXPECT_FALSE(Climb());
  EXPECT_THAT(Effects(), ElementsAre("sweep_descendants SIGKILL"));
}

TEST_F(StopLadderTest, CountsEndsAfterOurSignalOnlyOfProgramsThatCrashOrForbidARestart) {
  const WorkerFailure exited{.exit_code = 1}, crashed{.signal = SIGSEGV},
      last{.exit_code = kExitDoNotRestart};
  EXPECT_TRUE(ladder_.Counts(exited, /*is_stopping=*/false));
  Start(After::kJoin);
  EXPECT_FALSE(ladder_.Counts(exited, true));
  EXPECT_TRUE(ladder_.Counts(crashed, true));
  EXPECT_TRUE(ladder_.Counts(last, true));
  ladder_.Reset();
  EXPECT_TRUE(ladder_.Counts(exited, false)) << "a round later";
}

TEST_F(StopLadderTest, SignalsNobodyWhereNobodyLives) {
  workers_.NoteEndOfAll();
  Start(After::kAsk);
  EXPECT_THAT(Effects(), ElementsAre("sweep_descendants SIGTERM"));
  EXPECT_FALSE(ladder_.has_signalled());
}

TEST_F(StopLadderTest, WaitsAfterASuccessForWhatWasLeftRunningAndNamesIt) {
  workers_.NoteEndOfAll();
  Start(After::kWait);
  EXPECT_THAT(Effects(), ElementsAre("await_descendants"));
  EXPECT_FALSE(Climb());
  EXPECT_THAT(Effects(), ElementsAre("name_descendants"));
  ladder_.NoteLeftovers({{"aws s3 cp (pid 4711)"}}, turn_);
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("left running: aws s3 cp (pid 4711); waiting up to "
                                               "29s")));
  EXPECT_FALSE(Climb());
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("stopping what the workers left running: aws"),
                                     "sweep_descendants SIGTERM"));
}

// The grace ends as the names are asked for.
TEST_F(StopLadderTest, WaitsForTheNamesOfWhatItStopsAndNoLonger) {
  options_.settings.shutdown_timeout = options_.leftover_notice;
  workers_.NoteEndOfAll();
  Start(After::kWait);
  EXPECT_FALSE(Climb());
  const MonoTime end_of_grace = now();
  EXPECT_GT(ladder_.deadline(), end_of_grace);
  ladder_.NoteLeftovers({{"aws s3 cp (pid 4711)"}}, turn_);
  EXPECT_EQ(ladder_.deadline(), end_of_grace);
  Effects();
  EXPECT_FALSE(Climb());
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("stopping what the workers left running: aws"),
                                     "sweep_descendants SIGTERM"));
}

TEST_F(StopLadderTest, EndsWhatLingersWhenAnotherEndComesUp) {
  workers_.NoteEndOfAll();
  Start(After::kWait);
  Effects();
  ladder_.EndLingering(turn_);
  EXPECT_THAT(Effects(), ElementsAre("sweep_descendants SIGTERM"));
  ladder_.EndLingering(turn_);
  EXPECT_THAT(Effects(), IsEmpty()) << "nothing lingers any more";
}

TEST_F(StopLadderTest, GivesSurvivorsHalfOfTheGraceToLetGo) {
  for (const int rank : {0, 1}) Say(rank, /*awaits=*/false);
  Start(After::kJoin, "rank 3 failed");
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("tell_round_over followed=yes")));
  EXPECT_EQ(ladder_.deadline(), now() + options_.settings.shutdown_timeout / 2);
  Say(0, /*awaits=*/true);
  EXPECT_FALSE(Climb());
  EXPECT_THAT(Effects(),
              ElementsAre(HasSubstr("survivors_slow"), "signal_workers SIGTERM spared=0"));
  EXPECT_FALSE(Climb());
  EXPECT_THAT(Effects(), ElementsAre("signal_workers SIGKILL spared=0"));
}

TEST_F(StopLadderTest, SignalsThoseWhoDoNotSurviveAtOnce) {
  Say(1, /*awaits=*/false);
  Start(After::kJoin, "rank 3 failed");
  EXPECT_THAT(Effects(),
              ElementsAre(HasSubstr("tell_round_over"), "signal_workers SIGTERM spared=1"));
}

TEST_F(StopLadderTest, SweepsAtOnceWhereAllAreParked) {
  for (const int rank : {0, 1}) Say(rank, /*awaits=*/true);
  Start(After::kJoin, "rank 3 failed");
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("tell_round_over"), "sweep_descendants SIGTERM"));
}

TEST_F(StopLadderTest, WaitsOnceMoreForAWorkerThatStrays) {
  for (const int rank : {0, 1}) Say(rank, /*awaits=*/true);
  Start(After::kJoin, "rank 3 failed");
  ladder_.StartAgain(turn_);
  EXPECT_TRUE(ladder_.awaits_workers());
  EXPECT_EQ(ladder_.deadline(), now() + options_.settings.shutdown_timeout / 2);
}

TEST_F(StopLadderTest, SkipsTheRungsThatWaitInHaste) {
  Start(After::kLeave);
  Effects();
  EXPECT_TRUE(ladder_.Hurry(now()));
  EXPECT_FALSE(ladder_.Climb(workers_, turn_));
  EXPECT_THAT(Effects(), ElementsAre("signal_workers SIGKILL"));
  EXPECT_FALSE(ladder_.Hurry(now())) << "SIGKILL is as quick as it gets";
  workers_.NoteEndOfAll();
  ladder_.BeginSweep(turn_);
  EXPECT_THAT(Effects(), ElementsAre("sweep_descendants SIGKILL"));
}

TEST_F(StopLadderTest, ClimbsForParkedWorkersThatAwaitARoundWhichDoesNotCome) {
  ladder_.StartForParked({LocalRank(1)}, turn_);
  EXPECT_THAT(Effects(), ElementsAre("signal_workers SIGTERM spared=1"));
  EXPECT_EQ(ladder_.deadline(), now() + options_.settings.shutdown_timeout);
}

TEST_F(StopLadderTest, StaysAimedAtTheEndOfTheJobWhateverTheNodeWants) {
  ladder_.Aim(After::kJoin);
  ladder_.AimToLeave();
  EXPECT_EQ(ladder_.after(), After::kLeave);
  ladder_.Aim(After::kFinish);
  ladder_.AimToLeave();
  EXPECT_EQ(ladder_.after(), After::kFinish);
}

TEST_F(StopLadderTest, HasSignalledNobodyInANewRound) {
  Start(After::kJoin);
  ladder_.Reset();
  EXPECT_FALSE(ladder_.has_signalled());
}

TEST_F(StopLadderTest, HasNoDeadlineOnTheGround) {
  Start(After::kJoin);
  ladder_.ReachGround();
  EXPECT_TRUE(ladder_.deadline().is_infinite());
}

}  // namespace
}  // namespace muster::agent
