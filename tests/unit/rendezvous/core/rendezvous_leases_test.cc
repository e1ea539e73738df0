// Nodes that are lost, and those that only seem to be.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using testing::HasSubstr;

class LeasesTest : public CoreTest {
 protected:
  // Ticks as the shell does, at each deadline until `seconds` later, and reports nothing.
  void Silence(double seconds) {
    const MonoTime end = job_->now + absl::Seconds(seconds);
    for (int ticks = 0; job_->NextDeadline() <= end; ++ticks) {
      ASSERT_LT(ticks, 100) << "a timer spins";
      job_->now = std::max(job_->now, job_->NextDeadline());
      job_->Step(Tick{});
    }
    job_->now = end;
  }
  bool IsKnown(int n) const { return job_->state().nodes.contains(Incarnation(n)); }
};

TEST_F(LeasesTest, ASilenceOfAllCostsNobodyItsPlace) {
  CoreUnderTest& job = Job(Settings(3, 3));
  job.RunWith(3);
  Silence(12);
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  for (int n = 1; n <= 3; ++n) job.Send(n);
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  EXPECT_EQ(job.state().round, Round(0));
}

TEST_F(LeasesTest, AfterASilenceOfAllEveryNodeHasAFreshLease) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  Silence(12);
  job.Advance(6, {1});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  job.Send(2);
  job.Send(3);
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
}

TEST_F(LeasesTest, FindsTheOneThatDoesNotComeBackFromASilenceOfAll) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  Silence(12);
  job.Advance(8.5, {1, 2});  // a lease from the first report, after two seconds
  EXPECT_FALSE(IsKnown(3));
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
}

TEST_F(LeasesTest, FindsADeadNodeAlsoWhereTheOtherIsHeardSeldom) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  for (int i = 0; i < 8 && IsKnown(2); ++i) {
    Silence(3.5);  // longer than what counts as a silence of all
    job.Send(1);
  }
  EXPECT_FALSE(IsKnown(2));
}

TEST_F(LeasesTest, LosesANodeAtTheEndOfItsLeaseWhileAnotherIsHeard) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  job.Advance(6.2, {1});
  EXPECT_TRUE(IsKnown(2));
  job.Advance(0.2, {1});
  EXPECT_FALSE(IsKnown(2));
}

TEST_F(LeasesTest, EndsAJobOfWhichNobodyIsHeardForTheOrphanTimeOut) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  Silence(599);
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  Silence(2);
  EXPECT_EQ(job.state().phase, JobPhase::kEnded);
  EXPECT_EQ(job.state().outcome->exit_code, kExitServerLost);
  EXPECT_THAT(job.state().outcome->reason, HasSubstr("no agent of the job was heard for 600s"));
}

TEST_F(LeasesTest, AJobThatHasLostItsLastNodeWaitsForOthers) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(1);
  job.Join(2);
  job.Report(2).phase = AgentPhase::kSucceeded;
  job.Advance(6.5, {2});  // node 1 is lost, as node 2 is heard
  EXPECT_FALSE(IsKnown(1));
  EXPECT_NE(job.state().phase, JobPhase::kEnded);
}

// --- A node that is started again

TEST_F(LeasesTest, ANewStartThatIsHeardLateAfterASilenceOfAllIsNoSecondNode) {
  CoreUnderTest& job = Job(StaticSettings(2));
  job.RunWith(2);
  const NodeDescription first = job.Report(1).node;
  job.Report(9).node = first;
  Silence(10);  // all have died
  job.Join(9);
  Silence(90);  // what the new starts said was lost
  job.Join(9);
  ASSERT_NE(job.Told<Refuse>(9), nullptr);
  EXPECT_TRUE(absl::IsUnavailable(job.Told<Refuse>(9)->status)) << job.Told<Refuse>(9)->status;
}

TEST_F(LeasesTest, ANewStartOfANodeThatDiedWaitingTakesItsPlace) {
  CoreUnderTest& job = Job(Settings(3, 3));
  job.Join(1);
  job.Join(2);
  job.Step(AgentDisconnected{Incarnation(1)});
  job.Report(9).node = Describe("node1");
  job.Join(9);
  EXPECT_FALSE(IsKnown(1));
  job.Join(3);
  ASSERT_EQ(job.state().round, Round(0));
  EXPECT_EQ(job.state().members.size(), 3u);
  EXPECT_FALSE(job.state().in_round.contains(Incarnation(1)));
}

TEST_F(LeasesTest, ANewStartOfAStaticNodeThatDiedWaitingTakesItsRank) {
  CoreUnderTest& job = Job(StaticSettings(2));
  job.Join(1);
  job.Step(AgentDisconnected{Incarnation(1)});
  job.Report(9).node = Describe("node1");
  job.Report(9).node.node_rank = 0;
  job.Join(9);
  job.Join(2);
  EXPECT_EQ(job.state().round, Round(0));
  EXPECT_EQ(job.state().ranks.claims.at(0).holder, Incarnation(9));
}

TEST_F(LeasesTest, TwoNodesOfOneNameThatAreBothConnectedStayTwo) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  job.Report(2).node = Describe("node1");
  job.Join(2);
  EXPECT_EQ(job.state().members.size(), 2u);
}

TEST_F(LeasesTest, ADeadNodeThatWaitedGetsNoRank) {
  CoreUnderTest& job = Job(Settings(2, 4));
  job.Join(1);
  job.Join(2);
  job.Join(3);
  job.Step(AgentDisconnected{Incarnation(1)});
  job.Advance(6, {2, 3});
  EXPECT_EQ(job.state().round, kNoRound);
  job.Advance(30, {2, 3});
  EXPECT_EQ(job.state().round, Round(0));
  EXPECT_EQ(job.state().members, (std::vector<Incarnation>{Incarnation(2), Incarnation(3)}));
}

// --- An agent whose guardian says that it has ended

AgentEnded EndOf(int n) { return {.from = Incarnation(77), .agent = Incarnation(n)}; }

TEST_F(LeasesTest, ANodeWhoseAgentWasKilledIsLostAtOnce) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  job.Step(AgentDisconnected{Incarnation(3)});
  EXPECT_TRUE(IsKnown(3)) << "it may come back";
  job.Step(EndOf(3));
  EXPECT_FALSE(IsKnown(3));
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
  EXPECT_THAT(job.state().forming_reason, HasSubstr("lost node3 (its agent was killed"));
}

TEST_F(LeasesTest, WhatAKilledAgentHasSaidIsHeardBeforeItIsLost) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  job.Step(EndOf(3));
  EXPECT_TRUE(IsKnown(3)) << "its stream has not ended yet";
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  job.Step(AgentDisconnected{Incarnation(3)});
  EXPECT_FALSE(IsKnown(3));
}

TEST_F(LeasesTest, TheEndOfAnEarlierStartOfANodeCostsItsPresentOneNothing) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.Step(AgentDisconnected{Incarnation(2)});
  job.Step(EndOf(2));
  job.Report(9).node = Describe("node2");
  job.Join(9);
  job.Send(1);
  job.Step(EndOf(2));
  EXPECT_TRUE(IsKnown(9));
  EXPECT_TRUE(IsKnown(1));
}

TEST_F(LeasesTest, TheEndOfAnAgentThatWaitedForAPlaceIsTakenOffTheList) {
  CoreUnderTest& job = Job(Settings(3, 3));
  job.Join(1);
  job.Join(2);
  job.Step(AgentDisconnected{Incarnation(2)});
  job.Step(EndOf(2));
  EXPECT_EQ(job.state().joined.size(), 1u);
  EXPECT_TRUE(job.state().away.empty());
}

TEST_F(LeasesTest, TheEndOfAnAgentBehindItsJobIsForgotten) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  job.Report(1).phase = AgentPhase::kSucceeded;
  job.Send(1);
  job.Step(EndOf(1));
  EXPECT_EQ(job.state().phase, JobPhase::kEnded);
  job.Step(AgentDisconnected{Incarnation(1)});
  EXPECT_FALSE(IsKnown(1));
}

// The test does without CoreUnderTest, whose checks after each step look at every node.
TEST(LargeJob, HasALongerLeaseSinceItsAgentsAreToldToRenewItLessOften) {
  constexpr int kNodes = 4000;
  RendezvousCore core({.term = ServerTerm(1), .instance = Instance(5)});
  MonoTime now = At(1000);
  AgentReport report{.settings = Settings(kNodes + 1, kNodes + 1)};
  for (report.sequence = 1; report.sequence <= 2; ++report.sequence) {  // joined, then renewed
    for (int n = 1; n <= kNodes; ++n) {
      report.node = Describe(absl::StrCat("node", n), 1);
      core.Step(AgentReported{Incarnation(n), report}, now);
    }
  }
  EXPECT_EQ(LeaseOf({}, core.state()).renew_interval, 2 * LeaseSettings{}.renew_interval);
  const auto renew_the_last = [&] {
    ++report.sequence;
    core.Step(AgentReported{Incarnation(kNodes), report}, now);
  };
  for (int i = 0; i < 3; ++i) {
    now = now + absl::Seconds(4);
    renew_the_last();
  }
  EXPECT_EQ(core.state().nodes.size(), kNodes) << "the lease of a small job would be over";
  now = now + absl::Milliseconds(400);
  renew_the_last();
  EXPECT_EQ(core.state().nodes.size(), 1u);
}

}  // namespace
}  // namespace muster::rendezvous
