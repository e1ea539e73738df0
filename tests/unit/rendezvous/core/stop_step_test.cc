// The one step after which all ranks leave: when it is named, and what follows for the job.
#include "rendezvous/core/stop_step.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "rendezvous/core/membership_policy.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using testing::HasSubstr;

class StopStepTest : public CoreTest {
 protected:
  StopAnswer Ask(CoreUnderTest& job, StopRequest request) {
    for (const Effect& effect : job.Step(StopRequested{Incarnation(99), std::move(request)})) {
      const auto* answer = std::get_if<SendAnswer>(&effect);
      if (answer != nullptr) return answer->answer;
    }
    ADD_FAILURE() << "no answer";
    return {};
  }
  // Every worker of node n has promised to begin nothing beyond `floor`.
  void Promise(CoreUnderTest& job, int n, int64_t floor) {
    job.Report(n).stop_floor = floor;
    job.SendPhase(n, AgentPhase::kRunning);
  }
  int64_t StepTold(CoreUnderTest& job, int n) {
    const auto* at = job.Told<StopAt>(n);
    return at == nullptr ? -2 : at->step;
  }
  void Leave(CoreUnderTest& job, int n) { job.SendPhase(n, AgentPhase::kSucceeded); }
  static RendezvousSettings LeavingWith76(RendezvousSettings settings) {
    settings.left_exit_code = 76;
    return settings;
  }
};

// --- The step

TEST_F(StopStepTest, EveryMemberIsToldThatItIsOpen) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  EXPECT_TRUE(Ask(job, {.reason = "maintenance"}).status.ok());
  for (const int n : {1, 2}) {
    ASSERT_NE(job.Told<StopAt>(n), nullptr);
    EXPECT_EQ(*job.Told<StopAt>(n),
              (StopAt{Round(0), kStopStepOpen, "stopped on request: maintenance"}));
  }
}

TEST_F(StopStepTest, TheFurthestThatAnyHasBegunIsNamedOnceAllHaveSaidHowFarTheyAre) {
  CoreUnderTest& job = Job(Settings(3, 3));
  job.RunWith(3);
  Ask(job, {});
  Promise(job, 1, 41);
  Promise(job, 3, 40);
  EXPECT_EQ(StepTold(job, 3), kStopStepOpen);
  Promise(job, 2, 42);
  for (const int n : {1, 2, 3}) EXPECT_EQ(StepTold(job, n), 42);
}

TEST_F(StopStepTest, WhatIsNamedStaysNamed) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  Ask(job, {});
  Promise(job, 1, 5);
  Promise(job, 2, 7);
  Ask(job, {.reason = "once more"});
  job.Send(1);
  EXPECT_EQ(StepTold(job, 1), 7);
}

TEST_F(StopStepTest, WhereNoRankHasBegunAStepTheFirstIsNamed) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  Ask(job, {});
  Promise(job, 1, -1);
  EXPECT_EQ(StepTold(job, 1), 0);
}

TEST_F(StopStepTest, AMemberWhosePromiseIsGoneIsWaitedForAgain) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  Ask(job, {});
  Promise(job, 1, 5);
  job.Report(1).stop_floor.reset();
  job.SendPhase(1, AgentPhase::kRunning);
  Promise(job, 2, 4);
  EXPECT_EQ(StepTold(job, 2), kStopStepOpen);
}

TEST_F(StopStepTest, AMemberThatHasFinishedNeedSayNothing) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  Leave(job, 1);
  Ask(job, {});
  Promise(job, 2, 9);
  EXPECT_EQ(StepTold(job, 2), 9);
}

TEST_F(StopStepTest, AMemberThatHasNotHeardOfItsRoundHearsOfThatFirst) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  job.Join(2);
  job.SendPhase(1, AgentPhase::kRunning);
  Ask(job, {});
  EXPECT_NE(job.Told<RunRound>(2), nullptr);
  job.SendPhase(2, AgentPhase::kRunning);
  EXPECT_EQ(StepTold(job, 2), kStopStepOpen);
}

// --- The end of the job

TEST_F(StopStepTest, AJobWhoseRanksHaveAllLeftEndsWithZeroAndTheReason) {
  CoreUnderTest& job = Job(Settings(2, 2, 3));
  job.RunWith(2);
  Ask(job, {.reason = "maintenance"});
  Promise(job, 1, 5);
  Promise(job, 2, 5);
  Leave(job, 1);
  Leave(job, 2);
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.exit_code, 0);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.reason,
            "stopped on request: maintenance; every rank left after step 5");
}

TEST_F(StopStepTest, AProgramThatFinishesByItselfMeanwhileHasSucceeded) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  Ask(job, {});
  Leave(job, 1);
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.reason, "every worker ended with exit code 0");
}

TEST_F(StopStepTest, ProgramsThatDoNotAskAreSignalledAfterTheShutdownTimeout) {
  CoreUnderTest& job = Job(Settings(2, 2, 3));
  job.RunWith(2);
  Ask(job, {.reason = "maintenance"});
  Promise(job, 1, 5);
  job.Advance(29, {1, 2});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  job.Advance(2, {1, 2});
  ASSERT_EQ(job.state().phase, JobPhase::kEnding);
  job.SendPhase(1, AgentPhase::kStopped);
  job.SendPhase(2, AgentPhase::kStopped);
  ASSERT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome.exit_code, 0);
  EXPECT_THAT(job.Told<EndJob>(2)->outcome.reason, HasSubstr("not after one step"));
}

TEST_F(StopStepTest, AStepThatIsNamedHasNoTimeLimit) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  Ask(job, {});
  Promise(job, 1, 5);
  job.Advance(600, {1});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
}

TEST_F(StopStepTest, AtOnceSignalsTheWorkersAtOnce) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  EXPECT_THAT(Ask(job, {.at_once = true}).text, HasSubstr("signalled now"));
  ASSERT_NE(job.Told<StopRound>(1), nullptr);
  EXPECT_EQ(job.Told<StopRound>(1)->cause, StopCause::kJobFailed);
}

TEST_F(StopStepTest, AtOnceAlsoEndsTheWaitForAStep) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  Ask(job, {});
  Promise(job, 1, 5);
  Ask(job, {.at_once = true});
  EXPECT_NE(job.Told<StopRound>(1), nullptr);
}

TEST_F(StopStepTest, AWorkerThatFailsMeanwhileEndsTheJobWithItsFailure) {
  CoreUnderTest& job = Job(Settings(2, 2, 3));
  job.RunWith(2);
  Ask(job, {});
  job.Fail(1, 0, 7);
  ASSERT_EQ(job.state().phase, JobPhase::kEnding) << "it is not started again";
  EXPECT_EQ(job.state().outcome->exit_code, 7);
}

TEST_F(StopStepTest, ANodeThatIsLostMeanwhileDoesNotMakeTheJobGoOn) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.now = At(1000);
  job.Join(1);
  job.Join(2);
  job.SendPhase(1, AgentPhase::kRunning);
  job.SendPhase(2, AgentPhase::kRunning);
  Ask(job, {.reason = "maintenance"});
  Promise(job, 1, 5);
  job.Advance(10, {1});
  EXPECT_EQ(job.state().phase, JobPhase::kEnding);
  EXPECT_EQ(job.state().outcome->exit_code, 0);
  EXPECT_THAT(job.state().outcome->reason, HasSubstr("lost node2"));
}

TEST_F(StopStepTest, AJobThatRunsNoRoundEndsAtOnce) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  EXPECT_THAT(Ask(job, {}).text, HasSubstr("no round of it was running"));
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.exit_code, 0);
}

TEST_F(StopStepTest, AJobThatHasEndedCannotBeStopped) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  Leave(job, 1);
  const StopAnswer answer = Ask(job, {});
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("has ended already"));
}

TEST_F(StopStepTest, NoRoundEndsForANewcomerMeanwhile) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.Join(1);
  job.Advance(31, {1});
  job.SendPhase(1, AgentPhase::kRunning);
  Ask(job, {});
  Promise(job, 1, 5);
  job.Join(2);
  ASSERT_NE(job.Told<Wait>(2), nullptr);
  EXPECT_THAT(job.Told<Wait>(2)->text, HasSubstr("stops after a step"));
  job.Advance(120, {1, 2});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
}

// --- Drained nodes

TEST_F(StopStepTest, TheNextRoundBeginsWithoutTheDrainedNodeWhoseAgentEndsWell) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  EXPECT_TRUE(Ask(job, {.node = "node2", .reason = "a fan"}).status.ok());
  Promise(job, 1, 5);
  Promise(job, 2, 6);
  EXPECT_EQ(StepTold(job, 1), 6);
  Leave(job, 1);
  Leave(job, 2);
  ASSERT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome,
            (JobOutcome{.exit_code = 0, .reason = "node2 was drained on request: a fan"}));
  job.Step(AgentDisconnected{Incarnation(2)});
  EXPECT_FALSE(job.state().nodes.contains(Incarnation(2)));
  job.Report(1).stop_floor.reset();
  job.Join(1);
  ASSERT_NE(job.Told<RunRound>(1), nullptr);
  EXPECT_EQ(job.Told<RunRound>(1)->assignment.num_nodes, 1);
  EXPECT_FALSE(job.state().stop_step.has_value());
}

TEST_F(StopStepTest, ADrainedNodeThatIsSlowIsEndedOnceItHasStopped) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  Ask(job, {.node = "node2", .at_once = true});
  ASSERT_NE(job.Told<StopRound>(2), nullptr);
  job.Join(2);
  EXPECT_NE(job.Told<EndJob>(2), nullptr);
  job.Join(1);
  ASSERT_NE(job.Told<RunRound>(1), nullptr);
  EXPECT_EQ(job.state().members.size(), 1u);
}

TEST_F(StopStepTest, ASpareIsDrainedWithoutAStop) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(2);
  EXPECT_THAT(Ask(job, {.node = "node2"}).text, HasSubstr("runs no round now"));
  EXPECT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_FALSE(job.state().stop_step.has_value());
}

TEST_F(StopStepTest, ANodeIsAlsoNamedByItsAddress) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  EXPECT_TRUE(Ask(job, {.node = "address-of-node2"}).status.ok());
}

TEST_F(StopStepTest, ANameThatSeveralNodesHaveIsAnsweredWithTheirAddresses) {
  CoreUnderTest& job = Job(Settings(1, 2));
  for (const int n : {1, 2}) job.Report(n).node.name = "localhost";
  job.RunWith(2);
  const StopAnswer answer = Ask(job, {.node = "localhost"});
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(answer.status.message()),
              HasSubstr("give the address of one: address-of-node1 and address-of-node2"));
  EXPECT_FALSE(job.state().stop_step.has_value());
}

TEST_F(StopStepTest, AnUnknownNodeIsAnsweredWithThoseThereAre) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  const StopAnswer answer = Ask(job, {.node = "nod2"});
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(answer.status.message()),
              testing::AllOf(HasSubstr("did you mean node2?"), HasSubstr("node1 and node2")));
}

TEST_F(StopStepTest, AStaticJobHasNoNodeToSpare) {
  CoreUnderTest& job = Job(StaticSettings(2));
  job.RunWith(2);
  const StopAnswer answer = Ask(job, {.node = "node2"});
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("muster stop"));
  EXPECT_FALSE(job.state().stop_step.has_value());
}

TEST_F(StopStepTest, WhoDrainsSaysThatTheNextRoundWaitsForAnother) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  EXPECT_THAT(Ask(job, {.node = "node2"}).text, HasSubstr("waits for 1 more node"));
}

TEST_F(StopStepTest, AlsoBeforeTheFirstRound) {
  CoreUnderTest& job = Job(Settings(3, 3));
  job.Join(1);
  job.Join(2);
  EXPECT_THAT(Ask(job, {.node = "node2"}).text, HasSubstr("waits for 2 more nodes"));
}

TEST_F(StopStepTest, AJobWhoseLastNodeIsDrainedEnds) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  Ask(job, {.node = "node1"});
  Ask(job, {.node = "node2"});
  Promise(job, 1, 5);
  Promise(job, 2, 5);
  Leave(job, 1);
  Leave(job, 2);
  EXPECT_EQ(job.state().phase, JobPhase::kEnded);
  EXPECT_EQ(job.state().outcome->exit_code, 0);
}

TEST_F(StopStepTest, AStopThatIsAskedForDuringADrainEndsTheJobAtTheSameStep) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  Ask(job, {.node = "node2"});
  Promise(job, 1, 5);
  Promise(job, 2, 5);
  Ask(job, {});
  EXPECT_EQ(StepTold(job, 1), 5);
  Leave(job, 1);
  Leave(job, 2);
  EXPECT_EQ(job.state().phase, JobPhase::kEnded);
}

TEST_F(StopStepTest, ADrainedNodeEndsWithTheCodeOfThoseThatLeave) {
  CoreUnderTest& job = Job(LeavingWith76(Settings(1, 2)));
  job.RunWith(2);
  Ask(job, {.node = "node2", .at_once = true});
  job.Join(2);
  ASSERT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome.exit_code, 76);
}

TEST_F(StopStepTest, SoDoesASpareThatNeverRanARound) {
  CoreUnderTest& job = Job(LeavingWith76(Settings(1, 1)));
  job.RunWith(2);
  Ask(job, {.node = "node2"});
  ASSERT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome.exit_code, 76);
}

TEST_F(StopStepTest, AJobWhoseLastNodeIsDrainedEndsWithThatCodeAndSaysWhatToDo) {
  CoreUnderTest& job = Job(LeavingWith76(Settings(1, 2)));
  job.RunWith(2);
  for (const char* node : {"node1", "node2"}) Ask(job, {.node = node});
  for (const int n : {1, 2}) Promise(job, n, 5);
  for (const int n : {1, 2}) Leave(job, n);
  ASSERT_EQ(job.state().phase, JobPhase::kEnded);
  EXPECT_EQ(*job.state().outcome,
            (JobOutcome{.exit_code = 76,
                        .reason = "node2 was drained on request, and no other node is left (start "
                                  "the job again to go on); every rank left after step 5"}));
}

TEST_F(StopStepTest, SoDoesAJobWhoseLastNodeIsDrainedBeforeItsFirstRound) {
  CoreUnderTest& job = Job(LeavingWith76(Settings(2, 2)));
  job.Join(1);
  Ask(job, {.node = "node1"});
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.exit_code, 76);
}

TEST_F(StopStepTest, AJobThatIsStoppedEndsWithZeroWhateverDrainedNodesEndWith) {
  CoreUnderTest& job = Job(LeavingWith76(Settings(2, 2)));
  job.Join(1);
  Ask(job, {});
  ASSERT_NE(job.Told<EndJob>(1), nullptr);
  EXPECT_EQ(job.Told<EndJob>(1)->outcome.exit_code, 0);
}

TEST_F(StopStepTest, ADrainedNodeThatTheOthersNeedSaysSoAndWhatToDo) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  Ask(job, {.node = "node2", .at_once = true});
  job.Join(2);
  ASSERT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome.reason,
            "node2 was drained on request; the next round then waits for 1 more node, 600s at most "
            "(--rdzv_conf=join_timeout); start a node in its place, or end the job with `muster "
            "stop`");
}

// --- Nodes that the hang watch has found at fault

TEST_F(StopStepTest, ANodeThatIsReplacedEndsWithTheCodeOfThoseThatLeave) {
  CoreUnderTest& job = Job(LeavingWith76(Settings(2, 2)));
  job.RunWith(3);
  job.Step(NodesAtFault{{Incarnation(2)}, "hang"});
  job.Join(2);
  ASSERT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome.exit_code, 76);
}

TEST_F(StopStepTest, TheNextRoundBeginsAtOnceWithASpareInThePlaceOfANodeAtFault) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(3);
  job.Step(NodesAtFault{{Incarnation(2)}, "hang: rank 2 does nothing"});
  for (const int n : {1, 2}) ASSERT_NE(job.Told<StopRound>(n), nullptr);
  EXPECT_THAT(job.Told<StopRound>(1)->reason, HasSubstr("node2 was replaced: hang: rank 2"));
  job.Join(2);
  ASSERT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_EQ(
      job.Told<EndJob>(2)->outcome,
      (JobOutcome{.exit_code = 0, .reason = "node2 was replaced: hang: rank 2 does nothing"}));
  job.Join(1);
  job.Advance(20, {1, 3});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  EXPECT_EQ(job.state().members, (std::vector<Incarnation>{Incarnation(1), Incarnation(3)}));
  EXPECT_EQ(job.state().restarts_used, 0) << "of --max_restarts, of which there are none";
}

TEST_F(StopStepTest, SeveralNodesAtFaultLeaveTogether) {
  CoreUnderTest& job = Job(Settings(1, 3));
  job.RunWith(3);
  job.Step(NodesAtFault{{Incarnation(2), Incarnation(3)}, "hang"});
  job.Join(3);
  EXPECT_NE(job.Told<EndJob>(3), nullptr);
  job.Join(2);
  EXPECT_NE(job.Told<EndJob>(2), nullptr);
  job.Join(1);
  job.Advance(20, {1});
  EXPECT_EQ(job.state().members, (std::vector<Incarnation>{Incarnation(1)}));
}

TEST_F(StopStepTest, NodesThatTheJobCannotDoWithoutStay) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(3);
  for (const std::vector<Incarnation>& nodes :
       {std::vector<Incarnation>{}, {Incarnation(1), Incarnation(2)}, {Incarnation(3)}}) {
    job.Step(NodesAtFault{nodes, "hang"});
    EXPECT_EQ(job.state().phase, JobPhase::kRunning);
    EXPECT_TRUE(job.state().drained.empty());
  }
}

TEST_F(StopStepTest, ARestThatIsSmallerThanTheLeastHasNoNodeToSpare) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  EXPECT_EQ(NodesToSpare(job.state()), 1);
  Ask(job, {});
  EXPECT_EQ(NodesToSpare(job.state()), 0) << "it stops anyway";
}

TEST_F(StopStepTest, AStaticJobSparesNoneOfItsNodes) {
  CoreUnderTest& job = Job(StaticSettings(2));
  job.RunWith(2);
  EXPECT_EQ(NodesToSpare(job.state()), 0);
}

TEST_F(StopStepTest, ANodeThatWaitsForAPlaceIsASpare) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  EXPECT_EQ(NodesToSpare(job.state()), 0);
  job.Join(3);
  EXPECT_EQ(NodesToSpare(job.state()), 1);
  job.Step(AgentDisconnected{Incarnation(3)});
  EXPECT_EQ(NodesToSpare(job.state()), 0);
}

// --- A node that has been told to end

TEST_F(StopStepTest, ANodeThatIsToldToEndLeavesAfterAStepAndTheOthersGoOn) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  job.Report(2).stop_wish = StopWish{SIGTERM, true, "node2 was told to end by SIGTERM"};
  job.SendPhase(2, AgentPhase::kRunning);
  EXPECT_EQ(StepTold(job, 1), kStopStepOpen);
  Promise(job, 1, 5);
  Promise(job, 2, 5);
  Leave(job, 1);
  Leave(job, 2);
  ASSERT_NE(job.Told<EndJob>(2), nullptr);
  EXPECT_EQ(job.Told<EndJob>(2)->outcome.exit_code, ExitCodeOfSignal(SIGTERM));
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
}

TEST_F(StopStepTest, WhereEveryNodeIsToldToEndTheJobEndsAfterAStepWithTheSignal) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  for (const int n : {1, 2}) {
    job.Report(n).stop_wish = StopWish{SIGTERM, true, "told to end"};
    job.SendPhase(n, AgentPhase::kRunning);
  }
  Promise(job, 1, 5);
  Promise(job, 2, 5);
  Leave(job, 1);
  Leave(job, 2);
  ASSERT_EQ(job.state().phase, JobPhase::kEnded);
  EXPECT_EQ(job.state().outcome->exit_code, ExitCodeOfSignal(SIGTERM));
}

TEST_F(StopStepTest, AStaticJobEndsWithTheNodeThatIsToldToEnd) {
  CoreUnderTest& job = Job(StaticSettings(2));
  job.RunWith(2);
  job.Report(2).stop_wish = StopWish{SIGTERM, false, "told to end"};
  job.SendPhase(2, AgentPhase::kRunning);
  Promise(job, 1, 5);
  Promise(job, 2, 5);
  Leave(job, 1);
  Leave(job, 2);
  EXPECT_EQ(job.state().phase, JobPhase::kEnded);
}

}  // namespace
}  // namespace muster::rendezvous
