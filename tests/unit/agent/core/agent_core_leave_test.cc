// How a node leaves after the one step at which all ranks stop.
#include <csignal>

#include "agent/core/agent_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "tests/unit/agent/core/agent_core_fixture.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AgentLeavesTest : public AgentCoreTest {
 protected:
  void RunObeying() {
    Run();
    for (const int rank : {0, 1}) Say(rank, std::nullopt);
  }
  std::vector<Effect>& Say(int local_rank, std::optional<int64_t> floor, bool obeys = true) {
    return Do(WorkerPromised{Round(0), LocalRank(local_rank), obeys, floor});
  }
  std::vector<Effect>& Open() { return Direct(StopAt{Round(0), kStopStepOpen, "maintenance"}); }
  std::vector<Effect>& Name(int64_t step) { return Direct(StopAt{Round(0), step, "maintenance"}); }
  std::vector<StopState> Told() const {
    std::vector<StopState> told;
    for (const TellStop& tell : All<TellStop>()) told.push_back(tell.stop);
    return told;
  }
};

const StopState kOpen{.is_stopping = true, .reason = "maintenance"};

TEST_F(AgentLeavesTest, SaysWhichPairsFailedUntilTheRoundIsOver) {
  Run();
  const std::vector<FailedPair> pairs = {{.from = 0, .to = 2, .fault = PairFault::kMtu}};
  Do(PairsFailed{Round(0), pairs});
  EXPECT_EQ(LastReport().failed_pairs, pairs);
  Direct(StopRound{.round = Round(0), .cause = StopCause::kMembershipChange, .reason = "apart"});
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
  Do(PairsFailed{Round(0), pairs});
  EXPECT_THAT(All<SendReport>(), IsEmpty()) << "the rendezvous knows";
}

TEST_F(AgentLeavesTest, PassesTheStopOnToItsWorkersAndSaysSoOnce) {
  RunObeying();
  Open();
  EXPECT_THAT(Told(), testing::ElementsAre(kOpen));
  EXPECT_THAT(All<Announce>(), SizeIs(1));
  Open();
  EXPECT_THAT(effects_, IsEmpty());
}

// A later life of the server may have no record of it, and the workers would hold for ever.
TEST_F(AgentLeavesTest, LetsItsWorkersGoOnWhereTheStopIsForgotten) {
  RunObeying();
  Direct(RunRound{Place(0)});
  EXPECT_THAT(Told(), IsEmpty());
  Open();
  Direct(RunRound{Place(0)});
  EXPECT_THAT(Told(), testing::ElementsAre(StopState()));
  Say(0, 4);
  Open();
  EXPECT_THAT(Told(), testing::ElementsAre(kOpen)) << "it may be asked for once more";
  Direct(RunRound{Place(0)});
  Open();
  Say(1, 6);
  EXPECT_THAT(All<SendReport>(), IsEmpty()) << "rank 0 has gone on since it promised 4";
  Say(0, 7);
  EXPECT_EQ(LastReport().stop_floor, 7);
  Name(6);
  Direct(RunRound{Place(0)});
  EXPECT_THAT(Told(), IsEmpty()) << "others may have left already";
}

TEST_F(AgentLeavesTest, SaysHowFarItsWorkersAreOnceEachHasPromised) {
  RunObeying();
  Open();
  Say(0, 4);
  EXPECT_THAT(All<SendReport>(), IsEmpty());
  Say(1, 6);
  ASSERT_THAT(All<SendReport>(), SizeIs(1));
  EXPECT_EQ(LastReport().stop_floor, 6);
  EXPECT_EQ(LastReport().phase, AgentPhase::kRunning);
}

TEST_F(AgentLeavesTest, AWorkerThatHasEndedNeedPromiseNothing) {
  RunObeying();
  Open();
  Say(0, 4);
  Exit(1, 0);
  Do(Tick{}, absl::Seconds(2));
  EXPECT_EQ(LastReport().stop_floor, 4);
}

TEST_F(AgentLeavesTest, AWorkerThatTakesItsPromiseBackIsNotCountedOn) {
  RunObeying();
  Open();
  Say(0, 4);
  Say(1, 4);
  Say(1, std::nullopt, false);
  EXPECT_EQ(LastReport().stop_floor, std::nullopt);
}

TEST_F(AgentLeavesTest, NothingIsSaidOfWorkersWithoutAStop) {
  RunObeying();
  Say(0, 4);
  Say(1, 4);
  EXPECT_THAT(All<SendReport>(), IsEmpty());
}

TEST_F(AgentLeavesTest, AWorkerThatBeginsToObeyLaterIsToldToo) {
  Run();
  Open();
  Say(0, std::nullopt);
  EXPECT_THAT(Told(), testing::ElementsAre(kOpen));
}

TEST_F(AgentLeavesTest, WorkersThatLeaveAfterTheStepHaveSucceeded) {
  RunObeying();
  Open();
  Name(6);
  EXPECT_EQ(Told().back().step, 6);
  SucceedEverywhere();
  EXPECT_EQ(LastReport().phase, AgentPhase::kSucceeded);
}

TEST_F(AgentLeavesTest, WorkersThatHoldWakeBeforeTheyAreSignalled) {
  RunObeying();
  Open();
  Direct(StopRound{Round(0), StopCause::kMembershipChange, "node2 was lost"});
  EXPECT_THAT(Told(), testing::ElementsAre(StopState()));
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
}

TEST_F(AgentLeavesTest, AStepThatIsNamedIsNotTakenBack) {
  RunObeying();
  Name(6);
  Direct(StopRound{Round(0), StopCause::kMembershipChange, "node2 was lost"});
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(AgentLeavesTest, AStopOfAnotherRoundIsLate) {
  RunObeying();
  Direct(StopAt{Round(3), 6, "maintenance"});
  EXPECT_THAT(effects_, IsEmpty());
}

// --- SIGTERM

TEST_F(AgentLeavesTest, ANodeThatIsToldToEndAsksForAStepBeforeItSignalsItsWorkers) {
  RunObeying();
  Do(SignalReceived{SIGTERM});
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  ASSERT_TRUE(LastReport().stop_wish.has_value());
  EXPECT_EQ(LastReport().stop_wish->signal, SIGTERM);
  EXPECT_TRUE(LastReport().stop_wish->drain_me);
  EXPECT_EQ(LastReport().phase, AgentPhase::kRunning);
}

TEST_F(AgentLeavesTest, WhenItsTimeRunsOutTheWholeJobIsToStopAtOneStep) {
  RunObeying();
  Do(TimeRunsOut{"the time limit is near"});
  ASSERT_TRUE(LastReport().stop_wish.has_value());
  EXPECT_EQ(*LastReport().stop_wish, (StopWish{SIGTERM, false, "the time limit is near"}));
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  Do(TimeRunsOut{"again"});
  EXPECT_THAT(effects_, IsEmpty());
}

TEST_F(AgentLeavesTest, WorkersThatDoNotObeyRunOnUntilTheirTimeIsUp) {
  Run();
  Say(0, std::nullopt);
  Do(TimeRunsOut{"the time limit is near"});
  EXPECT_THAT(effects_, IsEmpty());
}

TEST_F(AgentLeavesTest, WorkersThatDoNotObeyAreSignalledAtOnce) {
  Run();
  Say(0, std::nullopt);
  Do(SignalReceived{SIGTERM});
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
}

TEST_F(AgentLeavesTest, APersonsInterruptIsNotDelayed) {
  RunObeying();
  Do(SignalReceived{SIGINT});
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
}

// What --signals_to_handle names is a scheduler's word, as of Slurm's --signal=USR1@120.
TEST_F(AgentLeavesTest, AUserSignalThatEndsTheJobAsksForAStepOfAllNodes) {
  AgentCoreOptions options = Options();
  options.stop_signals = {SIGTERM, SIGUSR1};
  core_ = AgentCore(options);
  RunObeying();
  Do(SignalReceived{SIGUSR1});
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  EXPECT_EQ(LastReport().stop_wish, (StopWish{SIGUSR1, false, "node1 was told to end by SIGUSR1"}));
  Do(Tick{}, kGrace / 2);
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGUSR1);
}

TEST_F(AgentLeavesTest, OtherwiseItIsPassedOnAndAsksForNothing) {
  RunObeying();
  Do(SignalReceived{SIGUSR1});
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGUSR1);
  EXPECT_THAT(All<SendReport>(), IsEmpty());
}

TEST_F(AgentLeavesTest, WithoutAServerWorkersAreSignalledAtOnce) {
  RunObeying();
  Do(LinkChanged{.up = false, .detail = "reset"});
  Do(SignalReceived{SIGTERM});
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
}

TEST_F(AgentLeavesTest, WithoutAStepInHalfTheGraceWorkersAreSignalled) {
  RunObeying();
  Do(SignalReceived{SIGTERM});
  Do(Tick{}, kGrace / 2 - absl::Seconds(1));
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  EXPECT_LE(core_.NextDeadline(), now_ + absl::Seconds(1));
  Do(Tick{}, absl::Seconds(1));
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGTERM);
  EXPECT_EQ(LastReport().phase, AgentPhase::kLeaving);
  Do(Tick{}, kGrace / 2);
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGKILL) << "within the grace as ever";
}

TEST_F(AgentLeavesTest, WorkersThatLeaveAfterAStepHaveTheGraceButForItsEnd) {
  RunObeying();
  Do(SignalReceived{SIGTERM});
  Name(6);
  Do(Tick{}, kGrace - absl::Seconds(6));
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  Do(Tick{}, absl::Seconds(1));
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
}

TEST_F(AgentLeavesTest, ASecondSignalIsForThoseInHaste) {
  RunObeying();
  Do(SignalReceived{SIGTERM});
  Do(SignalReceived{SIGTERM});
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGTERM);
  Do(SignalReceived{SIGTERM});
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGKILL);
}

TEST_F(AgentLeavesTest, ADrainedNodeEndsAsItIsTold) {
  RunObeying();
  Do(SignalReceived{SIGTERM});
  Name(6);
  SucceedEverywhere();
  Direct(EndJob{{.exit_code = 143, .reason = "node1 was told to end by SIGTERM"}});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, ExitCodeOfSignal(SIGTERM));
}

TEST_F(AgentLeavesTest, ANodeThatIsDrainedOnRequestSaysWhyItEnds) {
  RunObeying();
  Name(6);
  SucceedEverywhere();
  Direct(EndJob{{.reason = "node1 was drained on request: a fan"}});
  ASSERT_THAT(All<Announce>(), SizeIs(1));
  EXPECT_EQ(All<Announce>()[0].text, "node1 was drained on request: a fan");
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 0);
}

TEST_F(AgentLeavesTest, ANodeThatIsToldToEndJoinsNoOtherRound) {
  RunObeying();
  Do(SignalReceived{SIGTERM});
  Direct(StopRound{Round(0), StopCause::kRestart, "restart 1 of 3"});
  EXPECT_EQ(LastReport().phase, AgentPhase::kLeaving);
  Exit(0, 0, SIGTERM);
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_THAT(All<Finish>()[0].outcome.reason, HasSubstr("told to end by SIGTERM"));
}

}  // namespace
}  // namespace muster::agent
