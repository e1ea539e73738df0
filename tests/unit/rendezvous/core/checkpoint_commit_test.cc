#include "rendezvous/core/checkpoint_commit.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "rendezvous/core/job_outcome.h"
#include "rendezvous/core/job_table.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class CommitTest : public CoreTest {};

TEST_F(CommitTest, IsAMembersOfTheRunningRound) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  EXPECT_EQ(job.Commit(1, 100), absl::OkStatus());
  EXPECT_EQ(job.state().committed_step, 100);
  EXPECT_EQ(job.Commit(2, 100), absl::OkStatus()) << "asking again does no harm";
}

TEST_F(CommitTest, IsNotThatOfANodeWithoutAPlace) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(2);
  EXPECT_TRUE(absl::IsAborted(job.Commit(2, Round(0), {.step = 100})));
  EXPECT_EQ(job.state().committed_step, -1);
}

TEST_F(CommitTest, IsNeverThatOfARoundThatIsOver) {
  CoreUnderTest& job = Job(Settings(1, 1, 1));
  job.RunWith(1);
  job.Fail(1);
  job.Join(1);
  ASSERT_EQ(job.state().round, Round(1));
  const absl::Status refused = job.Commit(1, Round(0), {.step = 100});
  EXPECT_TRUE(absl::IsAborted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("round 0 is over"));
}

TEST_F(CommitTest, IsStillAMembersWhileItsRoundIsBeingStopped) {
  CoreUnderTest& job = Job(Settings(2, 2, 1));
  job.RunWith(2);
  job.Fail(1);
  ASSERT_EQ(job.state().phase, JobPhase::kForming);
  EXPECT_EQ(job.Commit(2, 100), absl::OkStatus());
  job.Join(2);
  EXPECT_TRUE(absl::IsAborted(job.Commit(2, 101))) << "it has stopped";
}

// A node that was told to end has its grace to save in.
TEST_F(CommitTest, IsStillThatOfANodeThatLeavesByItself) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  job.Leave(1, {.signal = SIGTERM, .reason = "node1 was told to end by SIGTERM"});
  EXPECT_EQ(job.Commit(1, 100), absl::OkStatus());
  EXPECT_EQ(job.state().committed_step, 100);

  job.now = job.now + absl::Seconds(20);
  EXPECT_TRUE(absl::IsUnavailable(job.Commit(1, 101))) << "it has not been heard of";
  job.SendPhase(1, AgentPhase::kLeaving);
  EXPECT_EQ(job.Commit(1, 101), absl::OkStatus());
}

// What comes twice, or late, tells of no time after what came last.
TEST_F(CommitTest, IsNotThatOfANodeThatHasLeftForAReportThatComesLate) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  const uint64_t early = job.state().nodes.at(Incarnation(1)).report.sequence;
  job.Leave(1, {.signal = SIGTERM, .reason = "node1 was told to end by SIGTERM"});
  job.now = job.now + absl::Seconds(20);
  for (const uint64_t late : {early, job.state().former.at(Incarnation(1)).sequence}) {
    AgentReport report{.sequence = late, .phase = AgentPhase::kLeaving, .node = Describe("node1")};
    job.Step(AgentReported{Incarnation(1), report});
    EXPECT_TRUE(absl::IsUnavailable(job.Commit(1, 101)));
  }
}

TEST_F(CommitTest, IsNeverThatOfANodeThatLeftOnceTheOthersHaveGoneOn) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  job.Leave(1, {.signal = SIGTERM, .reason = "node1 was told to end by SIGTERM"});
  job.Join(2);
  job.Advance(40, {2});
  ASSERT_EQ(job.state().round, Round(1));
  EXPECT_TRUE(absl::IsAborted(job.Commit(1, Round(0), {.step = 100})));
}

TEST_F(CommitTest, IsNeverThatOfANodeThatWasLost) {
  CoreUnderTest& job = Job(Settings(1, 2));
  job.RunWith(2);
  job.Advance(20, {2});
  ASSERT_FALSE(job.state().nodes.contains(Incarnation(1)));
  EXPECT_TRUE(absl::IsAborted(job.Commit(1, Round(0), {.step = 100})));
}

TEST_F(CommitTest, WaitsForANodeThatHasLostItsConnectionToReport) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.Step(AgentDisconnected{Incarnation(1)});
  const absl::Status refused = job.Commit(1, 100);
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("not committed now: node1 lost its lease by long silence"));
  job.Send(1);
  EXPECT_EQ(job.Commit(1, 100), absl::OkStatus());
}

TEST_F(CommitTest, IsNotThatOfANodeWhoseLeaseHasEndedThoughNobodyWasHeard) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.now = job.now + absl::Seconds(20);
  EXPECT_TRUE(absl::IsUnavailable(job.Commit(1, 100)));
  EXPECT_EQ(job.state().phase, JobPhase::kRunning) << "it has its place still";
}

TEST_F(CommitTest, WaitsForAReportAfterASilenceOfAll) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(2);
  job.now = job.now + absl::Seconds(20);
  job.Send(2);
  EXPECT_TRUE(absl::IsUnavailable(job.Commit(1, 100)));
  job.Send(1);
  EXPECT_EQ(job.Commit(1, 100), absl::OkStatus());
}

TEST_F(CommitTest, IsNotForAServerOlderThanTheAskersNewest) {
  CoreUnderTest& job = Job(Settings(1, 1));
  job.RunWith(1);
  const absl::Status refused = job.Commit(1, Round(0), {ServerTerm(2), 100});
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("older than term 2"));
}

TEST(CommitThroughTheTable, IsAnsweredAsARequestToTheStoreIs) {
  JobTable table({.term = ServerTerm(1)});
  const JobKey key{"", "a"};
  AgentReport report{.sequence = 1, .node = Describe("node1"), .settings = Settings(1, 1)};
  table.OnReport(key, Incarnation(1), report, At(100));
  const Instance instance = FirstInstanceOf(ServerTerm(1));
  const auto effects = table.OnStoreRequest(
      key, Incarnation(1), {9, Round(0), CommitCheckpoint{ServerTerm(1), 50}, instance}, At(101));
  ASSERT_FALSE(effects.empty());
  const auto* reply = std::get_if<SendStoreReply>(&effects.front().effect);
  ASSERT_NE(reply, nullptr);
  EXPECT_EQ(reply->reply.request_id, 9u);
  EXPECT_EQ(reply->reply.status, absl::OkStatus());
  EXPECT_EQ(table.FindState(key)->committed_step, 50);
}

// A job of one node is over as soon as that is told to end, and its workers save then.
TEST(CommitThroughTheTable, IsForTheWorkersOfAJobThatIsOverUntilItIsFormedAnew) {
  JobTable table({.term = ServerTerm(1)});
  const JobKey key{"", "a"};
  AgentReport report{.sequence = 1, .node = Describe("node1"), .settings = Settings(1, 1)};
  table.OnReport(key, Incarnation(1), report, At(100));
  const Instance instance = FirstInstanceOf(ServerTerm(1));
  report.sequence = 2;
  report.instance = instance;
  report.round = Round(0);
  report.phase = AgentPhase::kLeaving;
  report.departure = Departure{.signal = SIGTERM};
  table.OnReport(key, Incarnation(1), report, At(101));
  ASSERT_TRUE(table.FindState(key) == nullptr);

  const auto commit = [&](Incarnation from, Round round) {
    const auto effects = table.OnStoreRequest(
        key, from, {9, round, CommitCheckpoint{ServerTerm(1), 50}, instance}, At(102));
    return std::get<SendStoreReply>(effects.at(0).effect).reply.status;
  };
  EXPECT_EQ(commit(Incarnation(1), Round(0)), absl::OkStatus());
  EXPECT_FALSE(commit(Incarnation(2), Round(0)).ok()) << "a stranger";
  EXPECT_FALSE(commit(Incarnation(1), Round(1)).ok()) << "no such round";

  AgentReport comer{.sequence = 1, .node = Describe("node2"), .settings = Settings(1, 1)};
  table.OnReport(key, Incarnation(3), comer, At(103));
  ASSERT_TRUE(table.FindState(key) != nullptr);
  EXPECT_TRUE(absl::IsAborted(commit(Incarnation(1), Round(0))));
  comer.sequence = 2;
  comer.instance = instance.Next();
  comer.round = Round(0);
  comer.phase = AgentPhase::kLeaving;
  comer.departure = Departure{.signal = SIGTERM};
  table.OnReport(key, Incarnation(3), comer, At(104));
  ASSERT_TRUE(table.FindState(key) == nullptr);
  EXPECT_TRUE(absl::IsAborted(commit(Incarnation(1), Round(0)))) << "it has been formed since";
}

// What the agent of a node sends again may come when the node is in another instance's round.
TEST(CommitThroughTheTable, IsOfTheInstanceThatTheRoundIsOfAsEachRequestToTheStoreIs) {
  JobTable table({.term = ServerTerm(1)});
  const JobKey key{"", "a"};
  AgentReport report{.sequence = 1, .node = Describe("node1"), .settings = Settings(1, 1)};
  table.OnReport(key, Incarnation(1), report, At(100));
  const Instance instance = FirstInstanceOf(ServerTerm(1));
  uint64_t id = 0;
  const auto ask = [&](StoreOperation operation, Instance of) {
    const auto effects = table.OnStoreRequest(key, Incarnation(1),
                                              {++id, Round(0), std::move(operation), of}, At(101));
    return std::get<SendStoreReply>(effects.at(0).effect).reply.status;
  };
  for (const StoreOperation& operation :
       std::vector<StoreOperation>{CommitCheckpoint{ServerTerm(1), 50}, StoreSet{"key", "value"}}) {
    EXPECT_TRUE(absl::IsAborted(ask(operation, instance.Next())));
    EXPECT_TRUE(absl::IsAborted(ask(operation, Instance())));
    EXPECT_EQ(ask(operation, instance), absl::OkStatus());
  }
}

// --- What commits say of a program's progress

class ProgressTest : public CommitTest {
 protected:
  // Fails until a restart is refused, at most `times`.
  int RestartsUntilTheEnd(CoreUnderTest& job, int times) {
    for (int i = 0; i < times; ++i) {
      job.Advance(20, {1});
      job.Fail(1);
      if (job.state().phase != JobPhase::kForming) return i;
      job.Join(1);
      job.Advance(20, {1});
      job.SendPhase(1, AgentPhase::kRunning);
    }
    return times;
  }
};

TEST_F(ProgressTest, AJobThatCommittedOnceAndGetsNoFurtherEnds) {
  CoreUnderTest& job = Job(Settings(1, 1, 100));
  job.RunWith(1);
  EXPECT_EQ(job.Commit(1, 700), absl::OkStatus());
  EXPECT_EQ(RestartsUntilTheEnd(job, 20), kMaxRestartsWithoutCommit);
  ASSERT_TRUE(job.state().outcome.has_value());
  EXPECT_EQ(job.state().outcome->exit_code, kExitNoProgress);
  EXPECT_THAT(job.state().outcome->reason,
              StartsWith("no progress: 5 restarts in a row, and no checkpoint since that of step "
                         "700; the last: "));
}

// The other node saves while its workers are being stopped.
TEST_F(ProgressTest, AnEndForWantOfCheckpointsIsNoOtherOneForACheckpointThatComesLate) {
  CoreUnderTest& job = Job(Settings(2, 2, 100));
  job.RunWith(2);
  EXPECT_EQ(job.Commit(1, 700), absl::OkStatus());
  for (int i = 0; i <= kMaxRestartsWithoutCommit; ++i) {
    job.Advance(20, {1, 2});
    job.Fail(1);
    if (job.state().phase != JobPhase::kForming) break;
    job.Join(1);
    job.Join(2);
    job.Advance(20, {1, 2});
    for (const int node : {1, 2}) job.SendPhase(node, AgentPhase::kRunning);
  }
  ASSERT_EQ(job.state().phase, JobPhase::kEnding);
  EXPECT_EQ(job.Commit(2, 800), absl::OkStatus());
  job.SendPhase(2, AgentPhase::kStopped);
  ASSERT_TRUE(job.state().outcome.has_value());
  EXPECT_EQ(job.state().outcome->exit_code, kExitNoProgress);
  EXPECT_THAT(job.state().outcome->reason, StartsWith("no progress: 5 restarts in a row"));
}

TEST_F(ProgressTest, EachCheckpointBeginsTheCountAgain) {
  CoreUnderTest& job = Job(Settings(1, 1, 100));
  job.RunWith(1);
  EXPECT_EQ(job.Commit(1, 700), absl::OkStatus());
  EXPECT_EQ(RestartsUntilTheEnd(job, 4), 4);
  EXPECT_EQ(job.Commit(1, 800), absl::OkStatus());
  EXPECT_EQ(RestartsUntilTheEnd(job, 20), kMaxRestartsWithoutCommit);
}

TEST_F(ProgressTest, AJobThatNeverCommitsHasItsRestartsAlone) {
  CoreUnderTest& job = Job(Settings(1, 1, 8));
  job.RunWith(1);
  EXPECT_EQ(RestartsUntilTheEnd(job, 20), 8);
  EXPECT_EQ(job.state().outcome->exit_code, 1);
}

TEST_F(ProgressTest, AWorkerMayAskNotToBeStartedAgain) {
  CoreUnderTest& job = Job(Settings(1, 1, 8));
  job.RunWith(1);
  job.Fail(1, 0, kExitDoNotRestart);
  EXPECT_EQ(job.state().phase, JobPhase::kEnding);
  EXPECT_EQ(job.state().outcome->exit_code, kExitDoNotRestart);
  EXPECT_THAT(job.state().outcome->reason, HasSubstr("this exit code forbids a restart"));
}

}  // namespace
}  // namespace muster::rendezvous
