#include "rendezvous/core/rendezvous_core.h"

#include <csignal>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "rendezvous/core/admission.h"
#include "rendezvous/core/job_outcome.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RendezvousCoreTest : public CoreTest {};

// --- Answers

TEST_F(RendezvousCoreTest, TellsEveryMemberInTheStepThatCompletesTheRound) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  job.Join(2);
  ASSERT_NE(job.Told<RunRound>(1), nullptr);
  ASSERT_NE(job.Told<RunRound>(2), nullptr);
  EXPECT_EQ(job.Told<RunRound>(1)->assignment.round, Round(0));
  EXPECT_EQ(job.Told<RunRound>(2)->assignment.peers.size(), 2u);
}

TEST_F(RendezvousCoreTest, LeavesPeersOutForAMemberThatAlreadyRunsTheRound) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.SendPhase(1, AgentPhase::kRunning);
  ASSERT_NE(job.Told<RunRound>(1), nullptr);
  EXPECT_TRUE(job.Told<RunRound>(1)->assignment.peers.empty());
}

// --- Settings and node ranks

TEST_F(RendezvousCoreTest, RefusesOtherSettingsNamingBothValuesAndNodes) {
  CoreUnderTest& job = Job(Settings(2, 2, 3));
  job.Join(1);
  job.Report(2).settings.max_restarts = 0;
  job.Join(2);
  ASSERT_NE(job.Told<Refuse>(2), nullptr);
  EXPECT_EQ(job.Told<Refuse>(2)->status,
            absl::InvalidArgumentError(
                "--max_restarts is 3 on node1 but 0 on node2; every node of a job must be started "
                "with the same value"));
  EXPECT_EQ(job.state().nodes.size(), 1u);
}

// The structured bindings count the fields: one that is added fails to compile here until it is
// refused where it differs.
TEST_F(RendezvousCoreTest, RefusesEverySettingThatDiffersByItsName) {
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k] = Settings(2, 2);
  using S = RendezvousSettings;
  const std::pair<std::string, std::function<void(S&)>> changes[] = {
      {"--nnodes is 2 on node1 but 1:2 on node2", [](S& s) { s.min_nodes = 1; }},
      {"--nnodes is 2 on node1 but 2:3 on node2", [](S& s) { s.max_nodes = 3; }},
      {"--max_restarts is 0 on node1 but 1 on node2", [](S& s) { s.max_restarts = 1; }},
      {"--rdzv_backend is dynamic on node1 but static on node2", [](S& s) { s.is_static = true; }},
      {"=join_timeout is 10m on node1 but 1s", [](S& s) { s.join_timeout = absl::Seconds(1); }},
      {"=last_call_timeout is 30s on node1 but 1s",
       [](S& s) { s.last_call_timeout = absl::Seconds(1); }},
      {"=close_timeout is 20s on node1 but 1s", [](S& s) { s.close_timeout = absl::Seconds(1); }},
      {"--shutdown_timeout is 30s on node1 but 1s",
       [](S& s) { s.shutdown_timeout = absl::Seconds(1); }},
      {"=orphan_timeout is 10m on node1 but 1s", [](S& s) { s.orphan_timeout = absl::Seconds(1); }},
      {"--scale_up is now on node1 but never", [](S& s) { s.scale_up = ScaleUp::kNever; }},
      {"--scale_up is now on node1 but checkpoint",
       [](S& s) { s.scale_up = ScaleUp::kCheckpoint; }},
      {"--left_exit_code is 0 on node1 but 76", [](S& s) { s.left_exit_code = 76; }},
  };
  for (const auto& [refusal, change] : changes) {
    CoreUnderTest& job = Job(Settings(2, 2));
    job.Join(1);
    change(job.Report(2).settings);
    job.Join(2);
    ASSERT_NE(job.Told<Refuse>(2), nullptr) << refusal;
    EXPECT_THAT(std::string(job.Told<Refuse>(2)->status.message()), HasSubstr(refusal));
  }
}

TEST_F(RendezvousCoreTest, RefusesAnotherNumberOfNodes) {
  CoreUnderTest& job = Job(Settings(2, 4));
  job.Join(1);
  job.Report(2).settings.min_nodes = 4;
  job.Join(2);
  ASSERT_NE(job.Told<Refuse>(2), nullptr);
  EXPECT_THAT(std::string(job.Told<Refuse>(2)->status.message()),
              HasSubstr("--nnodes is 2:4 on node1 but 4 on node2"));
}

TEST_F(RendezvousCoreTest, RefusesImpossibleValues) {
  CoreUnderTest& job = Job(Settings(2, 1));
  job.Join(1);
  ASSERT_NE(job.Told<Refuse>(1), nullptr);
  job.Report(2).settings = Settings(1, 1);
  job.Report(2).node.local_world_size = 0;
  job.Join(2);
  ASSERT_NE(job.Told<Refuse>(2), nullptr);
  EXPECT_FALSE(job.state().settings.has_value());
}

TEST_F(RendezvousCoreTest, RefusesANodeRankThatALiveNodeHolds) {
  CoreUnderTest& job = Job(StaticSettings(2));
  job.Join(1);
  job.Report(2).node.node_rank = 0;
  job.Join(2);
  ASSERT_NE(job.Told<Refuse>(2), nullptr);
  EXPECT_THAT(std::string(job.Told<Refuse>(2)->status.message()),
              HasSubstr("--node_rank is 0 on node2, but node1 already has that rank"));
}

TEST_F(RendezvousCoreTest, RefusesANodeRankOutOfRange) {
  CoreUnderTest& job = Job(StaticSettings(2));
  job.Report(1).node.node_rank = 2;
  job.Join(1);
  ASSERT_NE(job.Told<Refuse>(1), nullptr);
  EXPECT_THAT(std::string(job.Told<Refuse>(1)->status.message()), HasSubstr("expected 0 to 1"));
}

TEST_F(RendezvousCoreTest, LetsTheSuccessorOfADisconnectedNodeWaitForItsLeaseToEnd) {
  CoreUnderTest& job = Job(StaticSettings(3));
  job.Join(1);
  job.Join(2);
  job.Step(AgentDisconnected{Incarnation(1)});
  job.Report(9).node.node_rank = 0;
  job.Join(9);
  ASSERT_NE(job.Told<Refuse>(9), nullptr);
  EXPECT_TRUE(absl::IsUnavailable(job.Told<Refuse>(9)->status));
  EXPECT_THAT(std::string(job.Told<Refuse>(9)->status.message()),
              HasSubstr("node1 holds it but lost its connection"));
  job.Advance(6.4, {2});
  job.Join(9);
  EXPECT_EQ(job.state().ranks.claims.at(0).holder, Incarnation(9));
}

// The machine was restarted, and nobody has said that the old agent is gone.
TEST_F(RendezvousCoreTest, ANewStartOfANodeWaitsForTheOldOnesLeaseAlsoWhereNobodyElseIsHeard) {
  CoreUnderTest& job = Job(StaticSettings(1));
  job.RunWith(1);
  job.now = job.now + absl::Seconds(30);
  const NodeDescription first = job.Report(1).node;
  job.Report(9).node = first;
  for (int i = 0; i < 8 && !job.state().outcome; ++i) {
    job.Join(9);
    job.now = job.now + absl::Seconds(2);
    job.Step(Tick{});
  }
  ASSERT_TRUE(job.state().outcome);
  EXPECT_THAT(job.state().outcome->reason, HasSubstr("lost node1"));
}

TEST_F(RendezvousCoreTest, ASecondNodeOfTheSameNameIsRefusedOnceTheFirstHasBeenHeardFor) {
  CoreUnderTest& job = Job(StaticSettings(2));
  job.Join(1);
  const NodeDescription first = job.Report(1).node;
  job.Report(9).node = first;
  for (int seconds = 0; seconds < 12; seconds += 2) {
    job.Join(9);
    ASSERT_NE(job.Told<Refuse>(9), nullptr);
    EXPECT_TRUE(absl::IsUnavailable(job.Told<Refuse>(9)->status)) << seconds;
    job.Advance(2, {1});
    job.Join(1);
  }
  job.Advance(2, {1});
  job.Join(9);
  ASSERT_NE(job.Told<Refuse>(9), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(job.Told<Refuse>(9)->status));
}

// --- Joining

TEST_F(RendezvousCoreTest, CompletesAfterTheLastCallByATickAtItsDeadline) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.Join(1);
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
  job.Advance(30, {1});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
}

TEST_F(RendezvousCoreTest, TellsASpareThatAllPlacesAreTaken) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  job.Join(2);
  ASSERT_NE(job.Told<Wait>(2), nullptr);
  EXPECT_EQ(job.Told<Wait>(2)->text, "the only place is taken; node2 is a spare");
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
}

TEST_F(RendezvousCoreTest, MakesRoomForALateJoiner) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.Join(1);
  job.Advance(30, {1});
  job.SendPhase(1, AgentPhase::kRunning);
  job.Join(2);
  job.Advance(10, {1, 2});
  ASSERT_NE(job.Told<StopRound>(1), nullptr);
  EXPECT_EQ(job.Told<StopRound>(1)->cause, StopCause::kMembershipChange);
  EXPECT_EQ(job.Told<StopRound>(1)->reason, "node2 joined");
  EXPECT_FALSE(job.Told<StopRound>(1)->peer_lost);
  job.Join(1);
  EXPECT_EQ(job.state().round, Round(1));
  EXPECT_EQ(job.state().members.size(), 2u);
  EXPECT_EQ(job.state().restarts_used, 0);
}

TEST_F(RendezvousCoreTest, TakesNobodyInOnceMembersBeginToSucceed) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.Join(1);
  job.Join(2);
  job.Advance(30, {1, 2});
  job.SendPhase(1, AgentPhase::kSucceeded);
  job.Join(3);
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  ASSERT_NE(job.Told<Wait>(3), nullptr);
  EXPECT_THAT(job.Told<Wait>(3)->text, HasSubstr("the job is finishing"));
}

TEST_F(RendezvousCoreTest, EndsWithExitCodeFourAtTheJoinTimeout) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  job.Advance(600, {1});
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.exit_code, 4);
  EXPECT_THAT(job.Told<EndJob>(1)->outcome.reason, HasSubstr("1 of 2 nodes joined within 600s"));
}

// --- Failures

TEST_F(RendezvousCoreTest, RestartsEveryMemberWhileTheBudgetLasts) {
  CoreUnderTest& job = Job(Settings(2, 2, 3));
  job.RunWith(2);
  job.Fail(2, 1, 9);
  ASSERT_NE(job.Told<StopRound>(1), nullptr);
  ASSERT_NE(job.Told<StopRound>(2), nullptr);
  EXPECT_EQ(job.Told<StopRound>(1)->cause, StopCause::kRestart);
  EXPECT_EQ(job.Told<StopRound>(1)->reason,
            "restart 1 of 3: rank 3 (local rank 1) on node2 exited with code 9");
  EXPECT_EQ(job.state().restarts_used, 1);
}

TEST_F(RendezvousCoreTest, EndsWhenAWorkerForbidsARestartWhateverIsLeftOfTheBudget) {
  CoreUnderTest& job = Job(Settings(2, 2, 3));
  job.RunWith(2);
  job.Fail(2, 1, kExitDoNotRestart);
  EXPECT_EQ(job.state().phase, JobPhase::kEnding);
  ASSERT_TRUE(job.state().outcome.has_value());
  EXPECT_EQ(job.state().outcome->exit_code, 93);
}

TEST_F(RendezvousCoreTest, EndsWhenAWorkerForbidsTheRestartThatAnotherFailureHasBegun) {
  CoreUnderTest& job = Job(Settings(2, 2, 3));
  job.RunWith(2);
  job.Fail(1, 0, 1);
  job.Fail(2, 1, kExitDoNotRestart);
  ASSERT_TRUE(job.state().outcome.has_value());
  EXPECT_EQ(job.state().outcome->exit_code, 93);
}

TEST_F(RendezvousCoreTest, TellsAMemberThatHasStoppedWhomTheNextRoundWaitsFor) {
  CoreUnderTest& job = Job(Settings(2, 2, 1));
  job.RunWith(2);
  job.Fail(2);
  job.Join(2);
  ASSERT_NE(job.Told<Wait>(2), nullptr);
  EXPECT_THAT(job.Told<Wait>(2)->text, HasSubstr("waiting for node1 to stop its workers"));
}

TEST_F(RendezvousCoreTest, CountsEarlierRoundsSoThatAttemptsNeverRepeat) {
  CoreUnderTest& job = Job(Settings(2, 2, 1));
  job.RunWith(2);
  job.Fail(2);
  job.Join(2);
  job.Join(1);
  ASSERT_NE(job.Told<RunRound>(1), nullptr);
  EXPECT_EQ(job.Told<RunRound>(1)->assignment.round, Round(1));
  EXPECT_EQ(job.Told<RunRound>(1)->assignment.restart_count, 1);
}

// Invariant I8: a failing round charges the budget once.
TEST_F(RendezvousCoreTest, ChargesTheBudgetOncePerRound) {
  CoreUnderTest& job = Job(Settings(2, 2, 3));
  job.RunWith(2);
  job.Fail(1);
  job.Fail(2);
  job.Fail(2);
  EXPECT_EQ(job.state().restarts_used, 1);
}

TEST_F(RendezvousCoreTest, TakesAFailureFromAReportOfAStoppedMember) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  job.Report(1).failures = {{.rank = Rank(0), .node_name = "node1", .exit_code = 3}};
  job.SendPhase(1, AgentPhase::kStopped);
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.exit_code, 3);
}

TEST_F(RendezvousCoreTest, StopsTheOthersBeforeItEndsAJobWithoutBudget) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.Fail(1, 0, 7);
  ASSERT_NE(job.Told<StopRound>(2), nullptr);
  EXPECT_EQ(job.Told<StopRound>(2)->cause, StopCause::kJobFailed);
  job.SendPhase(1, AgentPhase::kStopped);
  EXPECT_EQ(job.state().phase, JobPhase::kEnding);
  job.SendPhase(2, AgentPhase::kStopped);
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  ASSERT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome.exit_code, 7);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome.reason,
            "rank 0 (local rank 0) on node1 exited with code 7");
}

TEST_F(RendezvousCoreTest, FindsTheRootCauseByTheInstantOfFailureNotOfItsReport) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.Fail(1, 0, 7);
  job.now = job.now + absl::Seconds(1);
  job.Fail(2, 1, 9, absl::Seconds(3));
  job.SendPhase(1, AgentPhase::kStopped);
  job.SendPhase(2, AgentPhase::kStopped);
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  const JobOutcome& outcome = job.Told<EndJob>(1)->outcome;
  EXPECT_EQ(outcome.exit_code, 9);
  EXPECT_EQ(outcome.root_cause->node_name, "node2");
  ASSERT_EQ(outcome.failures.size(), 2u);
  EXPECT_EQ(outcome.failures[1].node_name, "node1");
}

// Every node is told all of them, and the outcome stays after the end.
TEST_F(RendezvousCoreTest, TellsTheRootCauseWholeAndOneListOfCutFailures) {
  CoreUnderTest& job = Job(Settings(3, 3));
  job.RunWith(3);
  const std::string message = absl::StrCat("first", std::string(16 << 10, 'm'), "last");
  const std::string output = absl::StrCat(std::string(8 << 10, 'o'), "end");
  for (const int n : {1, 2, 3}) {
    const Rank rank = job.state().assignments.at(Incarnation(n)).first_rank;
    job.Report(n).failures = {
        {.rank = rank, .exit_code = n, .message = message, .last_output = output}};
    job.SendPhase(n, AgentPhase::kFailed);
  }
  for (const int n : {1, 2, 3}) job.SendPhase(n, AgentPhase::kStopped);
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  const JobOutcome& outcome = job.Told<EndJob>(1)->outcome;
  EXPECT_EQ(outcome.root_cause->message, message);
  EXPECT_EQ(outcome.root_cause->last_output, output);
  ASSERT_EQ(outcome.failures.size(), 3u);
  for (const WorkerFailure& failure : outcome.failures) {
    EXPECT_LE(failure.message.size() + failure.last_output.size(), kOtherFailureBytes);
    EXPECT_TRUE(absl::StartsWith(failure.message, "firstm")) << failure.message;
    EXPECT_TRUE(absl::EndsWith(failure.message, "mlast")) << failure.message;
  }
  EXPECT_TRUE(job.Told<EndJob>(2)->outcome.failures.IsSameAs(outcome.failures));
}

TEST_F(RendezvousCoreTest, EndsAJobWhoseMemberDoesNotStopInTime) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.Fail(1);
  job.SendPhase(1, AgentPhase::kStopped);
  job.Advance(44, {1, 2});
  EXPECT_EQ(job.state().phase, JobPhase::kEnding);
  job.Advance(1, {1, 2});
  EXPECT_EQ(job.state().phase, JobPhase::kEnded);
}

TEST_F(RendezvousCoreTest, IgnoresFailuresOfRanksThatAreNotTheMembers) {
  CoreUnderTest& job = Job(Settings(2, 2, 1));
  job.RunWith(2);
  job.Report(1).failures = {{.rank = Rank(3), .exit_code = 1}};
  job.SendPhase(1, AgentPhase::kRunning);
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  EXPECT_TRUE(job.state().failures.empty());
}

TEST_F(RendezvousCoreTest, HoldsBackOnlyAfterTheSecondQuickFailure) {
  CoreUnderTest& job = Job(Settings(1, 1, 5));
  std::vector<absl::Duration> pauses;
  for (int i = 0; i < 4; ++i) {
    job.Join(1);
    job.Advance(absl::ToDoubleSeconds(absl::Seconds(2)), {1});
    job.SendPhase(1, AgentPhase::kRunning);
    job.Fail(1);
    pauses.push_back(job.state().not_before - job.now);
  }
  EXPECT_THAT(pauses, ElementsAre(absl::ZeroDuration(), absl::Milliseconds(250),
                                  absl::Milliseconds(500), absl::Seconds(1)));
}

TEST_F(RendezvousCoreTest, ForgetsQuickFailuresAfterARoundThatRanLonger) {
  CoreUnderTest& job = Job(Settings(1, 1, 5));
  job.RunWith(1);
  job.Fail(1);
  job.Join(1);
  job.SendPhase(1, AgentPhase::kRunning);
  job.Report(1).failures.clear();
  job.Advance(11, {1});
  job.Fail(1);
  EXPECT_EQ(job.state().quick_ends, 0);
}

// --- Success

TEST_F(RendezvousCoreTest, EndsWithZeroWhenEveryMemberSucceeded) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.Join(3);
  job.SendPhase(1, AgentPhase::kSucceeded);
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  job.SendPhase(2, AgentPhase::kSucceeded);
  for (const int n : {1, 2, 3}) {
    ASSERT_NE(job.Told<EndJob>(n), nullptr);
    EXPECT_EQ(job.Told<EndJob>(n)->outcome.exit_code, 0);
  }
}

TEST_F(RendezvousCoreTest, CountsAMemberThatSucceededAndThenDiedAsDone) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.SendPhase(1, AgentPhase::kSucceeded);
  job.Advance(8, {2});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  job.SendPhase(2, AgentPhase::kSucceeded);
  EXPECT_EQ(job.state().phase, JobPhase::kEnded);
  EXPECT_EQ(job.state().outcome->exit_code, 0);
}

// --- Losses

TEST_F(RendezvousCoreTest, FormsTheNextRoundAtOnceWithoutALostMember) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  job.Advance(6.4, {1});
  ASSERT_NE(job.Told<StopRound>(1), nullptr);
  EXPECT_TRUE(job.Told<StopRound>(1)->peer_lost);
  EXPECT_EQ(job.Told<StopRound>(1)->reason, "lost node2 (no sign of life for 6.4s)");
  EXPECT_EQ(job.state().restarts_used, 0);
  job.Join(1);
  ASSERT_NE(job.Told<RunRound>(1), nullptr);
  EXPECT_EQ(job.Told<RunRound>(1)->assignment.num_nodes, 1);
}

TEST_F(RendezvousCoreTest, DoesNothingAtADisconnectUntilTheLeaseEnds) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  job.Step(AgentDisconnected{Incarnation(2)});
  job.Advance(6.2, {1});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
}

TEST_F(RendezvousCoreTest, NamesTheLostNodeWhenNoReplacementComesInTime) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.Advance(7, {1});
  job.Join(1);
  job.Advance(601, {1});
  ASSERT_TRUE(job.state().outcome.has_value());
  EXPECT_EQ(job.state().outcome->exit_code, 4);
  EXPECT_THAT(job.state().outcome->reason, HasSubstr("missing: node2."));
}

TEST_F(RendezvousCoreTest, GivesAReplacementThePlaceOfTheLostNode) {
  CoreUnderTest& job = Job(Settings(3, 3));
  job.RunWith(3);
  job.Advance(7, {2, 3});
  job.Join(2);
  job.Join(3);
  job.Join(9);
  EXPECT_THAT(job.state().members, ElementsAre(Incarnation(9), Incarnation(2), Incarnation(3)));
}

TEST_F(RendezvousCoreTest, TellsALostNodeThatComesBackToStopItsOldRound) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  job.Advance(7, {1});
  job.Join(1);
  job.Report(2).round = Round(0);
  job.Send(2);
  ASSERT_NE(job.Told<StopRound>(2), nullptr);
  EXPECT_EQ(job.Told<StopRound>(2)->round, Round(0));
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
}

TEST_F(RendezvousCoreTest, ChargesTheBudgetOfAStaticJobForALostNode) {
  CoreUnderTest& job = Job(StaticSettings(2, 1));
  job.RunWith(2);
  job.Advance(7, {1});
  EXPECT_EQ(job.state().restarts_used, 1);
  ASSERT_NE(job.Told<StopRound>(1), nullptr);
  EXPECT_THAT(job.Told<StopRound>(1)->reason, HasSubstr("restart 1 of 1: lost node2"));
}

TEST_F(RendezvousCoreTest, EndsAStaticJobWithoutBudgetForALostNode) {
  CoreUnderTest& job = Job(StaticSettings(2));
  job.RunWith(2);
  job.Advance(7, {1});
  job.SendPhase(1, AgentPhase::kStopped);
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.exit_code, 1);
  EXPECT_THAT(job.Told<EndJob>(1)->outcome.reason, HasSubstr("lost node2 (no sign of life for"));
}

// Invariant R8.
TEST_F(RendezvousCoreTest, CountsAMemberThatNeverHeardOfItsRoundAsInItUntilItSaysOtherwise) {
  CoreUnderTest& job = Job(Settings(2, 2, 1));
  job.Join(1);
  job.Join(2);
  job.SendPhase(1, AgentPhase::kRunning);
  job.Fail(1);
  job.Join(1);
  job.Report(2).round = kNoRound;
  job.Send(2);
  ASSERT_NE(job.Told<StopRound>(2), nullptr);
  EXPECT_EQ(job.state().round, Round(0));
  job.Report(2).round = Round(0);
  job.Send(2);
  EXPECT_EQ(job.state().round, Round(1));
}

TEST_F(RendezvousCoreTest, ReformsWhenAMemberJoinsAgainByItself) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.Join(2);
  ASSERT_NE(job.Told<StopRound>(1), nullptr);
  EXPECT_EQ(job.Told<StopRound>(1)->cause, StopCause::kMembershipChange);
  EXPECT_EQ(job.state().membership_changes, 1);
}

// --- Departures

TEST_F(RendezvousCoreTest, EndsTheJobForAllWhenAPersonInterruptsANode) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.Leave(1, {.signal = SIGINT, .ends_job = true, .reason = "node1 was interrupted by SIGINT"});
  ASSERT_NE(job.Told<StopRound>(2), nullptr);
  EXPECT_EQ(job.Told<StopRound>(2)->cause, StopCause::kJobFailed);
  job.SendPhase(2, AgentPhase::kStopped);
  ASSERT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome.exit_code, 130);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome.reason, "node1 was interrupted by SIGINT");
}

TEST_F(RendezvousCoreTest, GoesOnAtOnceWithoutANodeThatLeavesBySigterm) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  job.Leave(2, {.signal = SIGTERM, .reason = "node2 was told to end by SIGTERM"});
  EXPECT_NE(job.Told<Wait>(2), nullptr);
  ASSERT_NE(job.Told<StopRound>(1), nullptr);
  EXPECT_TRUE(job.Told<StopRound>(1)->peer_lost);
  job.Join(1);
  EXPECT_EQ(job.state().round, Round(1));
}

TEST_F(RendezvousCoreTest, EndsAStaticJobWhenANodeLeaves) {
  CoreUnderTest& job = Job(StaticSettings(2, 3));
  job.RunWith(2);
  job.Leave(2, {.signal = SIGTERM, .reason = "node2 was told to end by SIGTERM"});
  job.SendPhase(1, AgentPhase::kStopped);
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.exit_code, 143);
}

TEST_F(RendezvousCoreTest, IgnoresALateJoinOfANodeThatHasLeft) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  AgentReport late = job.Report(1);
  job.Join(1);
  job.Join(3);
  job.Leave(1, {.reason = "node1 left"});
  job.Step(AgentReported{Incarnation(1), late});
  EXPECT_FALSE(job.state().nodes.contains(Incarnation(1)));
  EXPECT_NE(job.DirectiveTo(1), nullptr);
}

TEST_F(RendezvousCoreTest, IgnoresTheInterruptOfANodeThatWasNeverAdmitted) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  job.Leave(8, {.signal = SIGINT, .ends_job = true, .reason = "node8 was interrupted"});
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
}

TEST_F(RendezvousCoreTest, EndsTheJobForAllWhenTheHostOfTheServerLeaves) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  job.Step(HostLeaving{{.signal = SIGTERM, .reason = "told to end by SIGTERM"}, "node9"});
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.exit_code, 143);
  EXPECT_THAT(job.Told<EndJob>(1)->outcome.reason, HasSubstr("node9, the host"));
}

TEST_F(RendezvousCoreTest, DoesNotWaitForMembersToStopWhenItsHostLeavesAnEndingJob) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.Fail(2);
  ASSERT_EQ(job.state().phase, JobPhase::kEnding);
  job.Step(HostLeaving{{.signal = SIGTERM, .reason = "told to end by SIGTERM"}, "node9"});
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_NE(job.Told<EndJob>(1)->outcome.exit_code, 143);
}

TEST_F(RendezvousCoreTest, TakesANodeWithAnUnkillableProcessOutAndNamesThePid) {
  CoreUnderTest& job = Job(Settings(1, 2, 3));
  job.RunWith(2);
  job.Fail(2);
  job.Report(2).unkillable_pids = {41, 42};
  job.Join(2);
  ASSERT_NE(job.Told<Refuse>(2), nullptr);
  EXPECT_THAT(std::string(job.Told<Refuse>(2)->status.message()),
              HasSubstr("could not end pid 41, 42 on node2"));
  job.Join(1);
  EXPECT_THAT(job.state().members, ElementsAre(Incarnation(1)));
}

// --- The end

TEST_F(RendezvousCoreTest, RetiresOnceEveryAgentIsToldAndGone) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.SendPhase(1, AgentPhase::kSucceeded);
  job.SendPhase(2, AgentPhase::kSucceeded);
  job.Step(AgentDisconnected{Incarnation(1)});
  EXPECT_FALSE(job.IsRetired());
  job.Step(AgentDisconnected{Incarnation(2)});
  EXPECT_TRUE(job.IsRetired());
  EXPECT_TRUE(job.NextDeadline().is_infinite());
}

TEST_F(RendezvousCoreTest, RetiresAfterTheCloseTimeoutAtTheLatest) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  job.SendPhase(1, AgentPhase::kSucceeded);
  job.Advance(19, {1});
  EXPECT_FALSE(job.IsRetired());
  job.Advance(1, {1});
  EXPECT_TRUE(job.IsRetired());
}

TEST_F(RendezvousCoreTest, RefusesANewNodeOfAJobThatHasEnded) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  job.SendPhase(1, AgentPhase::kSucceeded);
  job.Join(2);
  ASSERT_NE(job.Told<Refuse>(2), nullptr);
  EXPECT_EQ(job.Told<Refuse>(2)->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(job.Told<Refuse>(2)->status.message()), HasSubstr("again in 20s"));
}

TEST_F(RendezvousCoreTest, EndsAJobThatAllItsNodesHaveLeft) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  job.Leave(1, {.signal = SIGTERM, .reason = "node1 was told to end by SIGTERM"});
  EXPECT_EQ(job.state().phase, JobPhase::kEnded);
  EXPECT_TRUE(job.IsRetired());
}

}  // namespace
}  // namespace muster::rendezvous
