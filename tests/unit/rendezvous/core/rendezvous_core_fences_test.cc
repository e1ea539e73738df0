// What a report counts for: reports that are late, of another round or of another instance.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using testing::HasSubstr;

class FencesTest : public CoreTest {
 protected:
  // What node `n` says that obeyed an old directive: it runs, or stops, round 0 of an instance that
  // is over, and has been told so.
  static void RunOfAnotherInstance(CoreUnderTest& job, int n, AgentPhase phase) {
    AgentReport& report = job.Report(n);
    report.phase = phase;
    report.round = Round(0);
    report.instance = Instance();
    job.Send(n);
  }
};

TEST_F(FencesTest, AnswersEveryReportWithTheNewestSequence) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  job.Join(1);
  ASSERT_NE(job.DirectiveTo(1), nullptr);
  EXPECT_EQ(job.DirectiveTo(1)->report_sequence, 2u);
  EXPECT_EQ(job.DirectiveTo(1)->instance, Instance(5));
  EXPECT_NE(job.Told<Wait>(1), nullptr);
}

TEST_F(FencesTest, IgnoresALateReportButAnswersIt) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  AgentReport late = job.Report(1);
  late.sequence = 1;
  late.phase = AgentPhase::kFailed;
  job.Step(AgentReported{Incarnation(1), late});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  ASSERT_NE(job.Told<RunRound>(1), nullptr);
  EXPECT_EQ(job.DirectiveTo(1)->report_sequence, 2u);
}

TEST_F(FencesTest, IgnoresALateReportOfARoundThatItHasNotHad) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  AgentReport late = job.Report(1);
  late.sequence = 1;
  late.round = Round(7);
  job.Step(AgentReported{Incarnation(1), late});
  EXPECT_NE(job.Told<RunRound>(1), nullptr);
  EXPECT_EQ(job.Told<Refuse>(1), nullptr);
}

TEST_F(FencesTest, RefusesARoundThatTheJobHasNotHad) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Report(1).round = Round(7);
  job.Report(1).instance = Instance(5);
  job.Send(1);
  ASSERT_NE(job.Told<Refuse>(1), nullptr);
  EXPECT_EQ(job.Told<Refuse>(1)->status.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(job.state().nodes.empty());
}

TEST_F(FencesTest, ARoundOfAnotherInstanceIsNotOurRoundOfTheSameNumber) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  job.Join(2);
  RunOfAnotherInstance(job, 2, AgentPhase::kRunning);
  // It is still to run ours, and does not know its peers.
  ASSERT_NE(job.Told<RunRound>(2), nullptr);
  EXPECT_EQ(job.Told<RunRound>(2)->assignment.peers.size(), 2u);
}

TEST_F(FencesTest, AFailureInARoundOfAnotherInstanceIsNotCharged) {
  CoreUnderTest& job = Job(Settings(2, 2, 1));
  job.Join(1);
  job.Join(2);
  job.Report(2).failures = {{.rank = Rank(2), .local_rank = LocalRank(0), .exit_code = 1}};
  RunOfAnotherInstance(job, 2, AgentPhase::kFailed);
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  EXPECT_EQ(job.state().restarts_used, 0);
  EXPECT_TRUE(job.state().failures.empty());
}

TEST_F(FencesTest, OneThatRunsARoundOfAnotherInstanceLosesItsPlaceUntilItHasStopped) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.Join(1);
  RunOfAnotherInstance(job, 1, AgentPhase::kRunning);
  job.Join(2);
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
  job.Join(1);
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
}

TEST_F(FencesTest, ANodeThatIsNotKnownJoinsOnceItHasStoppedWhatItRuns) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(1);
  RunOfAnotherInstance(job, 2, AgentPhase::kRunning);
  ASSERT_NE(job.Told<Wait>(2), nullptr);
  EXPECT_THAT(job.Told<Wait>(2)->text, HasSubstr("waiting for node2 to stop what it runs"));
  EXPECT_EQ(job.state().nodes.size(), 1u);
}

}  // namespace
}  // namespace muster::rendezvous
