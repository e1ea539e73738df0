// AgentCore: what one node does about directives, exits and signals. Each test is one sentence of
// its behaviour.
#include "agent/core/agent_core.h"

#include <csignal>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "tests/unit/agent/core/agent_core_fixture.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(AgentCoreTest, ReservesPortsBeforeItAsksForAPlace) {
  Do(Started{});
  EXPECT_THAT(All<ReservePorts>(), SizeIs(1));
  EXPECT_THAT(All<SendReport>(), IsEmpty());
  Do(PortsReserved{.store_port = 5, .worker_ports = {6, 7}});
  EXPECT_EQ(LastReport().phase, AgentPhase::kJoining);
  EXPECT_EQ(LastReport().node.store_port, 5);
  EXPECT_EQ(LastReport().node.worker_ports, (std::vector<int>{6, 7}));
}

TEST_F(AgentCoreTest, EndsWithTwoWhenThePortThatTheUserAskedForIsTaken) {
  Do(Started{});
  Do(PortsFailed{absl::InvalidArgumentError("port 29500 is in use by pid 4242 (python3)")});
  EXPECT_EQ(LastReport().phase, AgentPhase::kLeaving);
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 2);
  EXPECT_EQ(All<Finish>()[0].outcome.reason, "port 29500 is in use by pid 4242 (python3)");
}

TEST_F(AgentCoreTest, StartsWorkersWhenTheRoundIsComplete) {
  Run();
  ASSERT_THAT(All<StartWorkers>(), SizeIs(1));
  EXPECT_EQ(All<StartWorkers>()[0].assignment.world_size, 4);
  EXPECT_EQ(core_.phase(), NodePhase::kRunning);
}

TEST_F(AgentCoreTest, LeavesARoundThatItMayNotRunInWithTheGivenExitCode) {
  Run();
  Do(RoundForbidden{{.reason = "node2 leaves", .exit_code = 4}});
  EXPECT_EQ(LastReport().phase, AgentPhase::kLeaving);
  ASSERT_TRUE(LastReport().departure.has_value());
  EXPECT_FALSE(LastReport().departure->ends_job);
  Exit(0, 0, SIGTERM);
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 4);
  EXPECT_EQ(All<Finish>()[0].outcome.reason, "node2 leaves");
}

TEST_F(AgentCoreTest, IgnoresARepeatedOrOlderDirective) {
  Run();
  EXPECT_THAT(Direct(RunRound{Place(0)}), IsEmpty());
  revision_ = 0;
  EXPECT_THAT(Direct(StopRound{.round = Round(0), .cause = StopCause::kRestart}), IsEmpty());
}

TEST_F(AgentCoreTest, IgnoresAStopOfAnotherRound) {
  Run();
  EXPECT_THAT(Direct(StopRound{.round = Round(4), .cause = StopCause::kRestart}), IsEmpty());
  EXPECT_EQ(core_.phase(), NodePhase::kRunning);
}

TEST_F(AgentCoreTest, RenewsItsLease) {
  Run();
  EXPECT_EQ(core_.NextDeadline(), now_ + absl::Seconds(2));
  Do(Tick{}, absl::Seconds(2));
  EXPECT_EQ(LastReport().phase, AgentPhase::kRunning);
}

// The server counts from when it heard the report, so it never ends a lease before the agent does.
TEST_F(AgentCoreTest, CountsItsLeaseFromWhenItSentTheReportThatWasAnswered) {
  Run();
  EXPECT_TRUE(core_.MayPublish(now_).ok());
  Do(Tick{}, absl::Seconds(2));
  const uint64_t sent = LastReport().sequence;
  const MonoTime sent_at = now_;
  now_ = now_ + absl::Seconds(3);
  Do(DirectiveArrived{Directive{.term = ServerTerm(1),
                                .instance = Instance(7),
                                .revision = ++revision_,
                                .report_sequence = sent,
                                .body = Wait{}}});
  EXPECT_TRUE(core_.MayPublish(sent_at + absl::Seconds(5.6)).ok());
  EXPECT_EQ(core_.MayPublish(sent_at + absl::Seconds(5.7)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(AgentCoreTest, PublishesNothingFromALostConnectionToTheNextAnswer) {
  Run();
  Do(LinkChanged{.up = false, .detail = "gone"});
  EXPECT_EQ(core_.MayPublish(now_).code(), absl::StatusCode::kUnavailable);
  Do(LinkChanged{.up = true});
  EXPECT_EQ(core_.MayPublish(now_).code(), absl::StatusCode::kUnavailable);
  Direct(Wait{});
  EXPECT_TRUE(core_.MayPublish(now_).ok());
}

TEST_F(AgentCoreTest, ReportsAFailureAtOnceAndStopsTheOthersWithSigterm) {
  Run();
  Exit(1, 5);
  EXPECT_EQ(LastReport().phase, AgentPhase::kFailed);
  ASSERT_THAT(LastReport().failures, SizeIs(1));
  EXPECT_EQ(LastReport().failures[0].exit_code, 5);
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGTERM);
}

TEST_F(AgentCoreTest, TellsTheAgeOfAFailureAtEachReport) {
  Run();
  Exit(1, 5);
  Do(Tick{}, absl::Seconds(3));
  ASSERT_THAT(LastReport().failures, SizeIs(1));
  EXPECT_EQ(LastReport().failures[0].age, absl::Seconds(3));
}

TEST_F(AgentCoreTest, CountsTheAgeOfAFailureFromItsInstantNotFromWhenItWasHeardOf) {
  Run();
  Do(WorkerExited{core_.round(), LocalRank(1),
                  WorkerFailure{.exit_code = 5, .age = absl::Seconds(2)}},
     absl::Seconds(4));
  ASSERT_THAT(LastReport().failures, SizeIs(1));
  EXPECT_EQ(LastReport().failures[0].age, absl::Seconds(2));
}

TEST_F(AgentCoreTest, TellsThatAWorkerForbidsARestartThoughAnotherFailedFirst) {
  Run();
  Exit(1, 5);
  Exit(0, kExitDoNotRestart);
  ASSERT_THAT(LastReport().failures, SizeIs(2));
  EXPECT_EQ(LastReport().failures[1].exit_code, kExitDoNotRestart);
}

TEST_F(AgentCoreTest, DoesNotCountTheEndOfAWorkerThatItSignalled) {
  Run();
  Exit(1, 5);
  Exit(0, 0, SIGTERM);
  Do(DescendantsGone{});
  EXPECT_EQ(LastReport().phase, AgentPhase::kStopped);
  EXPECT_THAT(LastReport().failures, SizeIs(1));
}

TEST_F(AgentCoreTest, CountsACrashEvenWhileStopping) {
  Run();
  Exit(1, 5);
  Exit(0, 0, SIGSEGV);
  Do(DescendantsGone{});
  EXPECT_THAT(LastReport().failures, SizeIs(2));
}

TEST_F(AgentCoreTest, KillsAfterTheGrace) {
  Run();
  Exit(1, 5);
  EXPECT_THAT(Do(Tick{}, absl::Seconds(2)), ::testing::Not(IsEmpty()));  // a renewal
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  Do(Tick{}, kGrace - absl::Seconds(2));
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGKILL);
}

TEST_F(AgentCoreTest, NamesAnUnkillableWorkerAndDoesNotWaitForIt) {
  Run();
  Do(WorkerSpawned{.round = Round(0), .local_rank = LocalRank(0), .pid = 4242});
  Exit(1, 5);
  Do(Tick{}, kGrace);
  Do(Tick{}, absl::Seconds(10));
  ASSERT_THAT(All<Announce>(), SizeIs(1));
  EXPECT_THAT(All<Announce>()[0].text, HasSubstr("pid 4242"));
  EXPECT_THAT(All<SweepDescendants>(), SizeIs(1));
  Do(DescendantsGone{});
  EXPECT_EQ(LastReport().unkillable_pids, (std::vector<int>{4242}));
}

TEST_F(AgentCoreTest, LeavesTheJobRatherThanRestartBesideAnUnkillableWorker) {
  Run();
  Direct(StopRound{.round = Round(0), .cause = StopCause::kRestart, .reason = "restart 1 of 3"});
  Exit(1, 0, SIGTERM);
  Do(Tick{}, kGrace);
  Do(Tick{}, absl::Seconds(10));
  Do(DescendantsGone{});
  EXPECT_EQ(LastReport().phase, AgentPhase::kLeaving);
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 1);
}

// It has reported its own failure, and is told of the restart when its worker has been given up.
TEST_F(AgentCoreTest, LeavesTheJobAlsoWhereTheRestartComesAfterTheUnkillableWorker) {
  Run();
  Exit(1, 5);
  Do(Tick{}, kGrace);
  Do(Tick{}, absl::Seconds(10));
  Do(DescendantsGone{});
  EXPECT_EQ(LastReport().phase, AgentPhase::kStopped);
  Direct(StopRound{.round = Round(0), .cause = StopCause::kRestart, .reason = "restart 1 of 3"});
  EXPECT_THAT(All<ReservePorts>(), IsEmpty());
  EXPECT_EQ(LastReport().phase, AgentPhase::kLeaving);
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 1);
}

TEST_F(AgentCoreTest, LetsWhatSuccessfulWorkersLeftRunningEndByItself) {
  Run();
  Exit(0, 0);
  EXPECT_THAT(All<AwaitDescendants>(), IsEmpty());
  Exit(1, 0);
  EXPECT_THAT(All<AwaitDescendants>(), SizeIs(1));
  EXPECT_THAT(All<SweepDescendants>(), IsEmpty());
  Do(Tick{}, absl::Seconds(1));
  EXPECT_THAT(All<NameDescendants>(), SizeIs(1));
  Do(DescendantsNamed{{"aws s3 cp (pid 4711)"}});
  ASSERT_THAT(All<Announce>(), SizeIs(1));
  EXPECT_THAT(All<Announce>()[0].text, HasSubstr("left running: aws s3 cp (pid 4711); waiting"));
  Do(Tick{}, kGrace - absl::Seconds(2));
  EXPECT_THAT(All<SweepDescendants>(), IsEmpty());
  Do(DescendantsGone{});
  EXPECT_EQ(LastReport().phase, AgentPhase::kSucceeded);
}

TEST_F(AgentCoreTest, EndsWhatSuccessfulWorkersLeftRunningOnceTheGraceIsOver) {
  Run();
  Exit(0, 0);
  Exit(1, 0);
  Do(Tick{}, absl::Seconds(1));
  Do(DescendantsNamed{{"aws (pid 4711)"}});
  Do(Tick{}, kGrace);
  ASSERT_THAT(All<SweepDescendants>(), SizeIs(1));
  EXPECT_EQ(All<SweepDescendants>()[0].signal, SIGTERM);
  ASSERT_THAT(All<Announce>(), SizeIs(1));
  EXPECT_THAT(All<Announce>()[0].text, HasSubstr("stopping what"));
  Do(Tick{}, absl::Seconds(5));
  ASSERT_THAT(All<SweepDescendants>(), SizeIs(1));
  EXPECT_EQ(All<SweepDescendants>()[0].signal, SIGKILL);
}

TEST_F(AgentCoreTest, EndsWhatSuccessfulWorkersLeftRunningAtOnceIfTheRoundStops) {
  Run();
  Exit(0, 0);
  Exit(1, 0);
  Direct(StopRound{.round = Round(0), .cause = StopCause::kRestart, .reason = "restart 1 of 3"});
  ASSERT_THAT(All<SweepDescendants>(), SizeIs(1));
  EXPECT_EQ(All<SweepDescendants>()[0].signal, SIGTERM);
}

TEST_F(AgentCoreTest, StopsAtAUserSignalThatItWasToldToHandle) {
  AgentCoreOptions options = Options();
  options.stop_signals = {SIGUSR1};
  core_ = AgentCore(options);
  Run();
  Do(SignalReceived{SIGUSR2});
  EXPECT_FALSE(core_.is_leaving());
  Do(SignalReceived{SIGUSR1});
  ASSERT_TRUE(core_.is_leaving());
  Exit(0, 0);
  Exit(1, 0);
  Do(DescendantsGone{});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 128 + SIGUSR1);
}

TEST_F(AgentCoreTest, ReportsSuccessAndWaitsForTheOthers) {
  Run();
  SucceedEverywhere();
  EXPECT_EQ(LastReport().phase, AgentPhase::kSucceeded);
  EXPECT_EQ(core_.phase(), NodePhase::kWaiting);
  Direct(EndJob{{.exit_code = 0, .reason = "done"}});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 0);
}

TEST_F(AgentCoreTest, JoinsAgainWithFreshPortsAfterARestart) {
  Run();
  Exit(1, 5);
  Direct(StopRound{.round = Round(0), .cause = StopCause::kRestart, .reason = "restart 1 of 3"});
  Exit(0, 0, SIGTERM);
  Do(DescendantsGone{});
  EXPECT_THAT(All<ReservePorts>(), SizeIs(1));
  Do(PortsReserved{.store_port = 9, .worker_ports = {10, 11}});
  EXPECT_EQ(LastReport().phase, AgentPhase::kJoining);
  EXPECT_EQ(LastReport().round, Round(0));
  EXPECT_EQ(LastReport().node.store_port, 9);
  EXPECT_THAT(LastReport().failures, IsEmpty());
  Direct(RunRound{Place(1)});
  EXPECT_THAT(All<StartWorkers>(), SizeIs(1));
}

TEST_F(AgentCoreTest, RestartsThoughItsOwnWorkersHadSucceeded) {
  Run();
  SucceedEverywhere();
  Direct(StopRound{.round = Round(0), .cause = StopCause::kRestart, .reason = "restart 1 of 3"});
  EXPECT_THAT(All<ReservePorts>(), SizeIs(1));
}

TEST_F(AgentCoreTest, GivesWorkersOfALostPeerLessTime) {
  Run();
  Direct(StopRound{.round = Round(0), .cause = StopCause::kMembershipChange, .peer_lost = true});
  Do(Tick{}, absl::Seconds(5));
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGKILL);
}

TEST_F(AgentCoreTest, ForwardsTheVerySignalItGot) {
  Run();
  Do(SignalReceived{SIGINT});
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGINT);
  EXPECT_EQ(LastReport().phase, AgentPhase::kLeaving);
  ASSERT_TRUE(LastReport().departure.has_value());
  EXPECT_TRUE(LastReport().departure->ends_job);
}

TEST_F(AgentCoreTest, PassesASchedulersWarningOnAndStopsNothing) {
  Run();
  for (int signal : {SIGUSR1, SIGUSR2, SIGCONT}) {
    Do(SignalReceived{signal});
    ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
    EXPECT_EQ(All<SignalWorkers>()[0].signal, signal);
    // What a rank that handles it has started gets none.
    EXPECT_EQ(All<SignalWorkers>()[0].group_at.is_infinite(), signal != SIGCONT);
  }
  EXPECT_EQ(core_.phase(), NodePhase::kRunning);
  EXPECT_FALSE(core_.is_leaving());
}

TEST_F(AgentCoreTest, SigtermTakesOnlyThisNodeOutOfAnElasticJob) {
  Run();
  Do(SignalReceived{SIGTERM});
  ASSERT_TRUE(LastReport().departure.has_value());
  EXPECT_FALSE(LastReport().departure->ends_job);
}

TEST_F(AgentCoreTest, ASecondInterruptKillsAtOnceAndDoesNotRestartTheGrace) {
  Run();
  Do(SignalReceived{SIGINT});
  Do(SignalReceived{SIGINT}, absl::Seconds(1));
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGKILL);
  Do(SignalReceived{SIGINT}, absl::Seconds(1));
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
}

TEST_F(AgentCoreTest, EndsWith128PlusTheSignal) {
  Run();
  Do(SignalReceived{SIGINT});
  Exit(0, 0, SIGINT);
  Exit(1, 0, SIGINT);
  Do(DescendantsGone{});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 130);
}

TEST_F(AgentCoreTest, ASignalWhileJoiningEndsAtOnce) {
  Join();
  Do(SignalReceived{SIGTERM});
  EXPECT_EQ(LastReport().phase, AgentPhase::kLeaving);
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 143);
}

TEST_F(AgentCoreTest, AWorkerThatCouldNotBeStartedIsAFailure) {
  Run();
  WorkerExited event{.round = Round(0), .local_rank = LocalRank(0)};
  event.failure = WorkerFailure{.start_failed = true, .message = "no such file: trian.py"};
  Do(event);
  EXPECT_THAT(All<Announce>()[0].text, HasSubstr("trian.py"));
  EXPECT_EQ(LastReport().phase, AgentPhase::kFailed);
}

TEST_F(AgentCoreTest, RefusalsEndWithTheExitCodeOfTheirKind) {
  Join();
  Direct(Refuse{absl::InvalidArgumentError("--max_restarts differs")});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 2);
}

TEST_F(AgentCoreTest, AnotherSecretEndsWithThree) {
  Join();
  Do(LinkChanged{.up = false, .detail = "x", .fatal = absl::PermissionDeniedError("secret")});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 3);
}

TEST_F(AgentCoreTest, WithoutAnyAnswerItGivesUpAtTheJoinTimeoutWithFour) {
  Do(Started{});
  Do(PortsReserved{.store_port = 1, .worker_ports = {2, 3}});
  Do(LinkChanged{.up = false, .detail = "connection refused"});
  EXPECT_EQ(core_.NextDeadline(), now_ + absl::Seconds(600));
  Do(Tick{}, absl::Seconds(600));
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 4);
  EXPECT_THAT(All<Finish>()[0].outcome.reason, HasSubstr("connection refused"));
}

TEST_F(AgentCoreTest, RunsOnWithoutAServerForTheOrphanTimeoutThenEndsWith75) {
  Run();
  Do(LinkChanged{.up = false, .detail = "connection reset"});
  Do(Tick{}, absl::Minutes(9));
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  Do(Tick{}, absl::Minutes(1));
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
  Exit(0, 0, SIGTERM);
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 75);
}

// --- Once the rendezvous has accepted this node, nothing that listens on its port is fatal

TEST_F(AgentCoreTest, RunsOnWhenSomebodyElseListensOnTheServersPort) {
  Run();
  for (const absl::Status& status :
       {absl::PermissionDeniedError("another secret"), absl::InvalidArgumentError("no TLS")}) {
    Do(LinkChanged{.up = false, .detail = "a stranger", .fatal = status});
    EXPECT_THAT(All<Finish>(), IsEmpty());
    EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  }
  Do(Tick{}, absl::Minutes(10));
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
}

TEST_F(AgentCoreTest, RunsOnWhenAServerThatServesAnotherJobRefusesIt) {
  Run();
  Direct(Refuse{absl::InvalidArgumentError("this server serves job 'b'")}, absl::Minutes(9));
  EXPECT_THAT(All<Finish>(), IsEmpty());
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  // It counts for nothing: the orphan time-out goes on.
  Do(Tick{}, absl::Minutes(1));
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
}

TEST_F(AgentCoreTest, AnnouncesOnceThatTheServerHasNoRecordOfItsRound) {
  Run();
  Direct(Refuse{absl::UnavailableError("no record of round 0")});
  ASSERT_THAT(All<Announce>(), SizeIs(1));
  EXPECT_EQ(All<Announce>()[0].event, "job_unrecorded");
  EXPECT_THAT(Direct(Refuse{absl::UnavailableError("no record of round 0")}), IsEmpty());
}

TEST_F(AgentCoreTest, LeavesTheTimeToAServerThatHasNoRecordOfItsRound) {
  Run();
  for (int i = 0; i < 20; ++i) {
    Direct(Refuse{absl::UnavailableError("no record of round 0")}, absl::Minutes(1));
    EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  }
}

TEST_F(AgentCoreTest, EndsAsItWasToldWhereTheServerHasForgottenHowTheJobEnded) {
  for (const absl::Status& forgotten :
       {absl::UnavailableError("no record of round 0"), absl::AbortedError("Join again")}) {
    core_ = AgentCore(Options());
    Run();
    Direct(StopRound{.round = Round(0),
                     .cause = StopCause::kJobFailed,
                     .reason = "rank 3 on node2 exited with code 9",
                     .exit_code = 9});
    Exit(0, 0, SIGTERM);
    Exit(1, 0, SIGTERM);
    Do(DescendantsGone{});
    EXPECT_THAT(All<Finish>(), IsEmpty());
    Direct(Refuse{forgotten});
    ASSERT_THAT(All<Finish>(), SizeIs(1));
    EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 9);
    EXPECT_EQ(
        All<Finish>()[0].outcome.reason,
        "rank 3 on node2 exited with code 9; the rendezvous at node1:29400 was started again, "
        "and does not know how the job ended");
  }
}

TEST_F(AgentCoreTest, EndsAsItWasToldWhereTheServerSaysNoMore) {
  Run();
  Direct(StopRound{.round = Round(0), .cause = StopCause::kJobFailed, .reason = "stopped"});
  Exit(0, 0, SIGTERM);
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  Do(Tick{}, absl::Seconds(61.5));
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 0);
  EXPECT_EQ(All<Finish>()[0].outcome.reason,
            "stopped; the rendezvous at node1:29400 is lost: no answer for 1m1s (connected)");
}

TEST_F(AgentCoreTest, SaysThatTheRendezvousIsBack) {
  Run();
  Do(LinkChanged{.up = false, .detail = "connection reset"});
  Do(LinkChanged{.up = true, .detail = "connected"});
  Direct(RunRound{Place(0)}, absl::Seconds(8));
  ASSERT_THAT(All<Announce>(), SizeIs(1));
  EXPECT_EQ(All<Announce>()[0].event, "rendezvous_attended");
  EXPECT_THAT(All<Announce>()[0].text, HasSubstr("after 8s"));
}

TEST_F(AgentCoreTest, RemembersAttemptsAndRestartsForAServerThatForgot) {
  Join();
  Assignment place = Place(0);
  place.restart_count = 4;
  place.restarts_used = 2;
  Direct(RunRound{place});
  EXPECT_EQ(LastReport().past, (JobPast{.attempts = 5, .restarts_used = 2}));
  EXPECT_EQ(LastReport().num_nodes, 2);
}

TEST_F(AgentCoreTest, ChargesItselfForAFailureThatNoServerHasCharged) {
  Run();
  Exit(0, 1);
  Direct(Refuse{absl::AbortedError("the round cannot go on")});
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  Do(PortsReserved{.store_port = 4, .worker_ports = {5, 6}});
  EXPECT_EQ(LastReport().phase, AgentPhase::kJoining);
  EXPECT_EQ(LastReport().instance, Instance());
  EXPECT_EQ(LastReport().past, (JobPast{.attempts = 1, .restarts_used = 1}));
}

TEST_F(AgentCoreTest, ChargesItselfOnceHoweverOftenItIsTold) {
  Run();
  Exit(0, 1);
  Direct(Refuse{absl::AbortedError("the round cannot go on")});
  Direct(Refuse{absl::AbortedError("the round cannot go on")});
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  Do(PortsReserved{.store_port = 4, .worker_ports = {5, 6}});
  EXPECT_EQ(LastReport().past, (JobPast{.attempts = 1, .restarts_used = 1}));
}

TEST_F(AgentCoreTest, DoesNotCallTheRoundThatItStopsOneOfTheNextInstance) {
  Run();
  Direct(Refuse{absl::AbortedError("the job has been formed again")});
  Direct(Wait{"waiting for node1 to stop what it runs"});
  Do(Tick{}, absl::Seconds(2));
  EXPECT_EQ(LastReport().round, Round(0));
  EXPECT_EQ(LastReport().instance, Instance());
  Exit(0, 0, SIGTERM);
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  Do(PortsReserved{.store_port = 4, .worker_ports = {5, 6}});
  EXPECT_EQ(LastReport().round, kNoRound);
  Direct(Wait{"waiting for 1 more of 2 nodes"});
  Do(Tick{}, absl::Seconds(2));
  EXPECT_EQ(LastReport().instance, Instance(7));
}

TEST_F(AgentCoreTest, SaysItsWholeStateAgainAfterAReconnect) {
  Run();
  Do(LinkChanged{.up = false, .detail = "connection reset"});
  Do(LinkChanged{.up = true, .detail = "connected"});
  EXPECT_EQ(LastReport().phase, AgentPhase::kRunning);
  EXPECT_EQ(LastReport().round, Round(0));
  EXPECT_EQ(LastReport().instance, Instance(7));
}

TEST_F(AgentCoreTest, EndsWhenTheGuardianIsGone) {
  Run();
  Do(GuardianLost{"guardian (pid 17) was killed"});
  EXPECT_EQ(LastReport().phase, AgentPhase::kLeaving);
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_THAT(All<Finish>()[0].outcome.reason, HasSubstr("pid 17"));
}

TEST_F(AgentCoreTest, StopsRunningWorkersWhenTheJobEnds) {
  Run();
  Direct(EndJob{{.exit_code = 9, .reason = "rank 3 on node2 exited with code 9"}});
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
  Exit(0, 0, SIGTERM);
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 9);
}

TEST_F(AgentCoreTest, DoesNotMissTheRendezvousOnceTheJobHasEnded) {
  Run();
  Direct(EndJob{{.exit_code = 9, .reason = "rank 3 on node2 exited with code 9"}});
  EXPECT_THAT(Do(LinkChanged{.up = false, .detail = "connection reset"}), IsEmpty());
}

TEST(AgentPhases, TableNamesEveryPhaseButTheLastAsASource) {
  const std::string table = PhaseTable();
  for (NodePhase phase :
       {NodePhase::kIdle, NodePhase::kChecking, NodePhase::kReserving, NodePhase::kJoining,
        NodePhase::kRunning, NodePhase::kWaiting, NodePhase::kStopping, NodePhase::kReporting}) {
    EXPECT_THAT(table, HasSubstr(std::string(ToString(phase)) + " -> "));
  }
  EXPECT_THAT(table, ::testing::Not(HasSubstr("done -> ")));
}

}  // namespace
}  // namespace muster::agent
