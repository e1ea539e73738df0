// Workers that outlive a round: who is kept, who is signalled, and when.
#include <csignal>

#include "agent/core/agent_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/core/agent_core_fixture.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AgentKeepsTest : public AgentCoreTest {
 protected:
  void RunSurvivors() {
    Run();
    for (const int rank : {0, 1}) Say(rank, /*awaits=*/false);
  }
  std::vector<Effect>& Say(int local_rank, bool awaits, bool survives = true, int64_t round = 0) {
    return Do(WorkerPromised{.round = Round(round),
                             .local_rank = LocalRank(local_rank),
                             .survives = survives,
                             .awaits_round = awaits});
  }
  std::vector<Effect>& Restart() {
    return Direct(
        StopRound{.round = Round(0), .cause = StopCause::kRestart, .reason = "rank 3 failed"});
  }
  // Goes to where the next round is asked for.
  void ParkBoth() {
    RunSurvivors();
    Restart();
    Say(0, true);
    Say(1, true);
    Do(DescendantsGone{});
  }
  void JoinAgain() { Do(PortsReserved{.store_port = 1, .worker_ports = {2, 3}}); }
};

TEST_F(AgentKeepsTest, TellsSurvivorsThatTheRoundIsOverInsteadOfSignallingThem) {
  RunSurvivors();
  Restart();
  ASSERT_THAT(All<TellRoundOver>(), SizeIs(1));
  EXPECT_TRUE(All<TellRoundOver>()[0].is_followed);
  EXPECT_EQ(All<TellRoundOver>()[0].reason, "rank 3 failed");
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
}

TEST_F(AgentKeepsTest, SignalsTheOthersAtOnce) {
  Run();
  Say(1, false);
  Restart();
  EXPECT_THAT(All<TellRoundOver>(), SizeIs(1));
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_THAT(All<SignalWorkers>()[0].spared, ElementsAre(LocalRank(1)));
}

TEST_F(AgentKeepsTest, JoinsAgainOnceAllHaveLetGoAndGivesThemTheNextRound) {
  ParkBoth();
  EXPECT_THAT(All<ReservePorts>(), SizeIs(1));
  JoinAgain();
  Direct(RunRound{Place(1)});
  ASSERT_THAT(All<StartWorkers>(), SizeIs(1));
  EXPECT_THAT(All<StartWorkers>()[0].kept, ElementsAre(LocalRank(0), LocalRank(1)));
}

TEST_F(AgentKeepsTest, StartsAProcessOnlyInThePlaceOfTheOneThatDied) {
  RunSurvivors();
  Exit(0, 0, SIGKILL);
  EXPECT_EQ(LastReport().phase, AgentPhase::kFailed);
  ASSERT_THAT(All<TellRoundOver>(), SizeIs(1));
  EXPECT_THAT(All<TellRoundOver>()[0].reason, HasSubstr("rank 0"));
  EXPECT_THAT(All<Announce>()[0].text, HasSubstr("1 on node1 would go on in the next round"));
  Say(1, true);
  Do(DescendantsGone{});
  EXPECT_EQ(LastReport().phase, AgentPhase::kStopped);
  Restart();
  JoinAgain();
  Direct(RunRound{Place(1)});
  EXPECT_THAT(All<StartWorkers>()[0].kept, ElementsAre(LocalRank(1)));
}

TEST_F(AgentKeepsTest, AWorkerMayLetGoBeforeTheNodeHearsWhy) {
  RunSurvivors();
  Say(1, true);
  EXPECT_THAT(effects_, IsEmpty());
  Exit(0, 0, SIGKILL);
  EXPECT_THAT(All<TellRoundOver>(), SizeIs(1));
  EXPECT_THAT(All<SweepDescendants>(), SizeIs(1));  // nobody is waited for
}

TEST_F(AgentKeepsTest, SignalsASurvivorThatHasNotLetGoAfterHalfOfTheGraceAndKillsItAtTheEnd) {
  RunSurvivors();
  Restart();
  Say(0, true);
  EXPECT_EQ(core_.NextDeadline(), now_ + absl::Seconds(2));
  Do(Tick{}, kGrace / 2);
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGTERM);
  EXPECT_THAT(All<SignalWorkers>()[0].spared, ElementsAre(LocalRank(0)));
  EXPECT_THAT(All<Announce>()[0].text, HasSubstr("local rank 1"));
  Do(Tick{}, kGrace / 2);
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGKILL);
  EXPECT_THAT(All<SignalWorkers>()[0].spared, ElementsAre(LocalRank(0)));
  Exit(1, 0, SIGKILL);
  Do(DescendantsGone{});
  JoinAgain();
  Direct(RunRound{Place(1)});
  EXPECT_THAT(All<StartWorkers>()[0].kept, ElementsAre(LocalRank(0)));
}

TEST_F(AgentKeepsTest, KillsOneThatStraysOnceTheOthersHaveBeenKilled) {
  RunSurvivors();
  Restart();
  Say(0, true);
  Do(Tick{}, kGrace / 2);
  Do(Tick{}, kGrace / 2);
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGKILL);
  EXPECT_THAT(All<SignalWorkers>()[0].spared, ElementsAre(LocalRank(0)));
  Say(0, false);
  ASSERT_THAT(All<EndWorker>(), SizeIs(1));
  EXPECT_EQ(All<EndWorker>()[0].local_rank, LocalRank(0));
}

// One that was kept has died as its place in round 1 was given; what is started in its place comes
// late.
class AgentStartsTooLateTest : public AgentKeepsTest {
 protected:
  void SetUp() override {
    ParkBoth();
    JoinAgain();
    Direct(RunRound{Place(1)});
    Do(WorkerSpawned{.round = Round(1), .local_rank = LocalRank(1)});
    Direct(StopRound{.round = Round(1), .cause = StopCause::kRestart, .reason = "node2 is lost"});
    ASSERT_THAT(All<SweepDescendants>(), SizeIs(1));  // both have let go, as far as is known
  }
  void Spawn() {
    Do(WorkerSpawned{.round = Round(1), .local_rank = LocalRank(0), .pid = 4711});
    ASSERT_THAT(All<EndWorker>(), SizeIs(1));
    EXPECT_EQ(All<EndWorker>()[0].local_rank, LocalRank(0));
  }
};

TEST_F(AgentStartsTooLateTest, AProcessThatComesWhileTheRoundIsStoppedIsEndedAndWaitedFor) {
  Spawn();
  Do(DescendantsGone{});
  EXPECT_THAT(All<ReservePorts>(), IsEmpty());
  Exit(0, 0, SIGKILL, 1);
  EXPECT_THAT(All<SweepDescendants>(), SizeIs(1));
  Do(DescendantsGone{});
  EXPECT_THAT(All<ReservePorts>(), SizeIs(1));
}

TEST_F(AgentStartsTooLateTest, AProcessThatComesWhileTheNextRoundIsJoinedIsEndedAndWaitedFor) {
  Do(DescendantsGone{});
  JoinAgain();
  Spawn();
  EXPECT_EQ(core_.phase(), NodePhase::kStopping);
  Exit(0, 0, SIGKILL, 1);
  Do(DescendantsGone{});
  EXPECT_THAT(All<ReservePorts>(), SizeIs(1));
  JoinAgain();
  Direct(RunRound{Place(2)});
  EXPECT_THAT(All<StartWorkers>()[0].kept, ElementsAre(LocalRank(1)));
}

TEST_F(AgentStartsTooLateTest, AProcessThatOutlivesItsEndIsNamedAndNotWaitedForForEver) {
  Spawn();
  Do(Tick{}, core_.NextDeadline() - now_);
  while (All<Announce>().empty()) Do(Tick{}, core_.NextDeadline() - now_);
  EXPECT_THAT(All<Announce>()[0].text, HasSubstr("pid 4711"));
}

// Told of its place in round 1, in which worker 1 has come.
class AgentAwaitsHelloTest : public AgentKeepsTest {
 protected:
  void SetUp() override {
    ParkBoth();
    JoinAgain();
    Direct(RunRound{Place(1)});
    for (const int rank : {0, 1}) {
      Do(WorkerSpawned{.round = Round(1), .local_rank = LocalRank(rank)});
      Say(rank, /*awaits=*/false, /*survives=*/true, /*round=*/1);
    }
    Do(WorkerGreeted{Round(1), LocalRank(1)});
  }
  // Ticks as its own deadlines ask for.
  bool EndsOneWithin(absl::Duration time) {
    const MonoTime end = now_ + time;
    while (core_.NextDeadline() < end) {
      Do(Tick{}, core_.NextDeadline() - now_);
      if (!All<EndWorker>().empty()) return true;
    }
    return false;
  }
};

TEST_F(AgentAwaitsHelloTest, EndsTheOneThatDoesNotComeInTime) {
  ASSERT_TRUE(EndsOneWithin(absl::Seconds(31)));
  ASSERT_THAT(All<EndWorker>(), SizeIs(1));
  EXPECT_EQ(All<EndWorker>()[0].local_rank, LocalRank(0));
  EXPECT_THAT(All<EndWorker>()[0].why, HasSubstr("30s"));
  EXPECT_FALSE(EndsOneWithin(absl::Seconds(40))) << "once";
}

TEST_F(AgentAwaitsHelloTest, LeavesThoseAloneThatHaveCome) {
  Do(WorkerGreeted{Round(1), LocalRank(0)});
  EXPECT_FALSE(EndsOneWithin(absl::Seconds(40)));
}

TEST_F(AgentAwaitsHelloTest, LeavesItToTheStopLadderWhereTheRoundEnds) {
  Direct(StopRound{.round = Round(1), .cause = StopCause::kJobFailed, .reason = "rank 3 failed"});
  EXPECT_FALSE(EndsOneWithin(absl::Seconds(40)));
}

TEST_F(AgentKeepsTest, KeepsNobodyWhereTheJobFails) {
  RunSurvivors();
  Direct(StopRound{.round = Round(0), .cause = StopCause::kJobFailed, .reason = "rank 3 failed"});
  EXPECT_THAT(All<TellRoundOver>(), IsEmpty());
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
}

TEST_F(AgentKeepsTest, EndsThoseThatAwaitARoundWhereNoRestartIsLeft) {
  RunSurvivors();
  Exit(0, 0, SIGKILL);
  Say(1, true);
  Do(DescendantsGone{});
  Direct(EndJob{JobOutcome{.exit_code = 1, .reason = "no restart is left"}});
  ASSERT_THAT(All<TellRoundOver>(), SizeIs(1));
  EXPECT_FALSE(All<TellRoundOver>()[0].is_followed);
  EXPECT_EQ(All<TellRoundOver>()[0].reason, "no restart is left");
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGTERM);
  EXPECT_THAT(All<Finish>(), IsEmpty());
  Exit(1, 1);
  Do(DescendantsGone{});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.reason, "no restart is left");
}

TEST_F(AgentKeepsTest, EndsThoseThatAwaitARoundWhenTheNodeLeaves) {
  ParkBoth();
  JoinAgain();
  Do(SignalReceived{SIGINT});
  EXPECT_THAT(All<Finish>(), IsEmpty());
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_FALSE(All<TellRoundOver>()[0].is_followed);
  Exit(0, 0, SIGTERM);
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 128 + SIGINT);
}

TEST_F(AgentKeepsTest, ASecondInterruptEndsThemAtOnce) {
  ParkBoth();
  JoinAgain();
  Do(SignalReceived{SIGINT});
  Do(SignalReceived{SIGINT});
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGKILL);
}

TEST_F(AgentKeepsTest, AnEndOfTheJobWhileTheyLetGoEndsThem) {
  RunSurvivors();
  Restart();
  Say(0, true);
  Direct(EndJob{JobOutcome{.exit_code = 1, .reason = "over"}});
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_THAT(All<SignalWorkers>()[0].spared, IsEmpty());
}

TEST_F(AgentKeepsTest, OneThatDiesWhileItAwaitsARoundIsStartedAnewAndIsNoFailure) {
  ParkBoth();
  JoinAgain();
  Exit(1, 0, SIGSEGV);
  EXPECT_THAT(All<Announce>(), SizeIs(1));
  Direct(RunRound{Place(1)});
  EXPECT_THAT(All<StartWorkers>()[0].kept, ElementsAre(LocalRank(0)));
  EXPECT_THAT(LastReport().failures, IsEmpty());
}

TEST_F(AgentKeepsTest, OneWhoseConnectionBreaksWhileItAwaitsARoundIsEndedFirst) {
  ParkBoth();
  JoinAgain();
  Say(1, /*awaits=*/false, /*survives=*/false);
  EXPECT_EQ(core_.phase(), NodePhase::kStopping);
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_THAT(All<SignalWorkers>()[0].spared, ElementsAre(LocalRank(0)));
  EXPECT_THAT(All<TellRoundOver>(), IsEmpty());
  // It ends as if its process had died: the end of that is heard of later.
  Exit(1, 0, SIGKILL);
  Do(DescendantsGone{});
  JoinAgain();
  Direct(RunRound{Place(1)});
  EXPECT_THAT(All<StartWorkers>()[0].kept, ElementsAre(LocalRank(0)));
  EXPECT_THAT(LastReport().failures, IsEmpty());
}

TEST_F(AgentKeepsTest, AServerWithoutItsStateKeepsNobody) {
  RunSurvivors();
  Direct(Refuse{absl::AbortedError("instance 7 is over")});
  EXPECT_THAT(All<TellRoundOver>(), IsEmpty());
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
}

TEST_F(AgentKeepsTest, AServerThatLosesItsStateWhileTheyAwaitARoundEndsThemAndTheNodeJoinsAnew) {
  ParkBoth();
  JoinAgain();
  Direct(Refuse{absl::AbortedError("instance 7 is over")});
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
  Exit(0, 0, SIGTERM);
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  EXPECT_THAT(All<ReservePorts>(), SizeIs(1));
}

TEST_F(AgentKeepsTest, AProcessThatReplacesAKeptOneHasPromisedNothing) {
  ParkBoth();
  JoinAgain();
  Direct(RunRound{Place(1)});
  Do(WorkerSpawned{.round = Round(1), .local_rank = LocalRank(0)});
  Do(WorkerSpawned{.round = Round(1), .local_rank = LocalRank(1), .pid = 77});
  Direct(StopRound{.round = Round(1), .cause = StopCause::kMembershipChange, .reason = "growth"});
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_THAT(All<SignalWorkers>()[0].spared, ElementsAre(LocalRank(0)));
}

TEST_F(AgentKeepsTest, AKeptWorkerSurvivesTheNextRoundToo) {
  ParkBoth();
  JoinAgain();
  Direct(RunRound{Place(1)});
  // One has heard of it, the other still awaits its word when this round is over as well.
  Say(0, false, true, 1);
  Direct(StopRound{.round = Round(1), .cause = StopCause::kRestart, .reason = "again"});
  EXPECT_THAT(All<TellRoundOver>(), SizeIs(1));
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  Say(0, true, true, 1);
  Do(DescendantsGone{});
  JoinAgain();
  Direct(RunRound{Place(2)});
  EXPECT_THAT(All<StartWorkers>()[0].kept, ElementsAre(LocalRank(0), LocalRank(1)));
}

TEST_F(AgentKeepsTest, OneThatHearsOfARoundThatIsOverAlreadyIsWaitedForOnceMore) {
  ParkBoth();
  JoinAgain();
  Direct(RunRound{Place(1)});
  Direct(StopRound{.round = Round(1), .cause = StopCause::kRestart, .reason = "again"});
  EXPECT_THAT(All<SweepDescendants>(), SizeIs(1));
  Say(0, false, true, 1);
  Do(DescendantsGone{});
  EXPECT_EQ(core_.phase(), NodePhase::kStopping);
  Say(0, true, true, 1);
  EXPECT_THAT(All<SweepDescendants>(), SizeIs(1));
  Do(DescendantsGone{});
  EXPECT_EQ(core_.phase(), NodePhase::kReserving);
}

TEST_F(AgentKeepsTest, AFailureInTheNextRoundIsThatRounds) {
  ParkBoth();
  JoinAgain();
  Direct(RunRound{Place(1)});
  Exit(1, 3, 0, 1);
  EXPECT_EQ(LastReport().phase, AgentPhase::kFailed);
  EXPECT_EQ(LastReport().round, Round(1));
}

}  // namespace
}  // namespace muster::agent
