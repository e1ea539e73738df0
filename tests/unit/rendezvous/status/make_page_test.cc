// What the status says of a job in each of its states.
#include "rendezvous/status/make_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::status {
namespace {

using rendezvous::CoreUnderTest;
using rendezvous::Settings;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

hangs::NodeSummary SummaryAt(int64_t step, int slowest_rank, int64_t slowest_step) {
  hangs::NodeSummary summary{.round = Round(0)};
  summary.progress = {.step = step,
                      .slowest_step = slowest_step,
                      .slowest_rank = slowest_rank,
                      .steps_per_second = 2.5};
  return summary;
}

StatusPage PageOf(const CoreUnderTest& job, const JobProgress* progress = nullptr) {
  return MakeStatusPage("j7", job.state(), progress, job.now);
}

TEST(MakeStatusPage, OfAJobThatRunsIsHealthy) {
  CoreUnderTest job(Settings(2, 2, 3));
  job.RunWith(2);
  job.Advance(10, {1, 2});
  const StatusPage page = PageOf(job);
  EXPECT_EQ(page.health.state, kHealthy);
  EXPECT_EQ(page.health.for_seconds, 10);
  EXPECT_EQ(page.round.phase, "running");
  EXPECT_EQ(page.round.world_size, 4);
  EXPECT_EQ(page.nodes.running, 2);
  EXPECT_EQ(page.restarts.max, 3);
  ASSERT_THAT(page.members, SizeIs(2));
  EXPECT_EQ(page.members[1].name, "node2");
  EXPECT_EQ(page.members[1].first_rank, 2);
  EXPECT_EQ(page.members[1].state, "running");
  EXPECT_GT(page.members[1].lease_seconds, 0);
}

TEST(MakeStatusPage, OfAJobThatWaitsSaysForWhomAndSinceWhen) {
  CoreUnderTest job(Settings(3, 3));
  job.Join(1);
  job.Advance(7, {1});
  const StatusPage page = PageOf(job);
  EXPECT_EQ(page.health.state, kWaiting);
  EXPECT_THAT(page.health.text, HasSubstr("waiting for 2 more of 3 nodes"));
  EXPECT_EQ(page.health.for_seconds, 7);
  EXPECT_EQ(page.round.world_size, 0);
  ASSERT_THAT(page.members, SizeIs(1));
  EXPECT_EQ(page.members[0].state, "joined");
}

TEST(MakeStatusPage, NamesASpare) {
  CoreUnderTest job(Settings(1, 1));
  job.RunWith(1);
  job.Join(2);
  const StatusPage page = PageOf(job);
  EXPECT_EQ(page.health.state, kHealthy);
  ASSERT_THAT(page.members, SizeIs(2));
  EXPECT_EQ(page.members[1].state, "spare");
  EXPECT_EQ(page.nodes.joined, 1);
}

TEST(MakeStatusPage, OfARestartSaysWhatIsWaitedForAndWhyItCame) {
  CoreUnderTest job(Settings(2, 2, 3));
  job.RunWith(2);
  job.Fail(1);
  const StatusPage page = PageOf(job);
  EXPECT_EQ(page.health.state, kWaiting);
  EXPECT_EQ(page.restarts.used, 1);
  EXPECT_THAT(page.last_incident.text, HasSubstr("node1"));
}

TEST(MakeStatusPage, OfAFailedJobSaysHowItEnded) {
  CoreUnderTest job(Settings(1, 1));
  job.RunWith(1);
  job.Fail(1, 0, 7);
  const StatusPage page = PageOf(job);
  EXPECT_EQ(page.health.state, kFailed);
  EXPECT_THAT(page.health.text, HasSubstr("(exit code 7)"));
}

TEST(MakeStatusPage, OfAJobThatHasSucceededIsEnded) {
  CoreUnderTest job(Settings(1, 1));
  job.RunWith(1);
  job.SendPhase(1, AgentPhase::kSucceeded);
  EXPECT_EQ(PageOf(job).health.state, kEnded);
  EXPECT_EQ(MakeEndedPage("j7", {.reason = "done"}).health.state, kEnded);
  EXPECT_EQ(MakeEndedPage("j7", {.exit_code = 3, .reason = "bad"}).health.state, kFailed);
}

TEST(MakeStatusPage, NamesANodeThatHasLostItsConnection) {
  CoreUnderTest job(Settings(2, 2));
  job.RunWith(2);
  job.Step(rendezvous::AgentDisconnected{Incarnation(2)});
  const StatusPage page = PageOf(job);
  EXPECT_EQ(page.health.state, kWaiting);
  EXPECT_THAT(page.health.text, HasSubstr("node2 has lost its connection"));
  EXPECT_EQ(page.members[1].state, "away");
}

TEST(MakeStatusPage, GivesANodeNoTimeBelowZeroToComeBack) {
  CoreUnderTest job(Settings(2, 2));
  job.RunWith(2);
  job.Step(rendezvous::AgentDisconnected{Incarnation(2)});
  job.now = job.now + absl::Seconds(10);  // what comes next may be another node's message
  EXPECT_EQ(PageOf(job).health.text, "node2 has lost its connection; its lease has run out");
}

TEST(MakeStatusPage, CountsADrainedNodeUntilItHasLeft) {
  CoreUnderTest job(Settings(1, 2));
  job.RunWith(2);
  job.Step(rendezvous::StopRequested{Incarnation(77), {.node = "node2"}});
  EXPECT_EQ(PageOf(job).nodes.draining, 1);
  job.Advance(10, {1});
  ASSERT_FALSE(job.state().nodes.contains(Incarnation(2)));
  EXPECT_EQ(PageOf(job).nodes.draining, 0);
}

TEST(MakeStatusPage, NamesTheSlowestRankAndItsLag) {
  CoreUnderTest job(Settings(2, 2));
  job.RunWith(2);
  JobProgress progress;
  progress.OnSummary(Incarnation(1), SummaryAt(20, 0, 20), job.now);
  progress.OnSummary(Incarnation(2), SummaryAt(19, 3, 16), job.now);
  const StatusPage page = PageOf(job, &progress);
  EXPECT_EQ(page.progress.step, 20);
  EXPECT_EQ(page.progress.slowest_rank, 3);
  EXPECT_EQ(page.progress.slowest_node, "node2");
  EXPECT_EQ(page.progress.lag_steps, 4);
  EXPECT_EQ(page.progress.steps_per_second, 2.5);
  EXPECT_EQ(page.members[1].step, 16);
}

TEST(MakeStatusPage, SaysWhoIsSilent) {
  CoreUnderTest job(Settings(1, 1));
  job.RunWith(1);
  JobProgress progress;
  hangs::NodeSummary summary{.round = Round(0)};
  summary.silent = {{.first_rank = 1, .silent_for = absl::Seconds(6)}};
  progress.OnSummary(Incarnation(1), summary, job.now);
  job.Advance(1, {1});
  const StatusPage page = PageOf(job, &progress);
  EXPECT_EQ(page.members[0].silent_rank, 1);
  EXPECT_EQ(page.members[0].silent_seconds, 7);
}

TEST(MakeStatusPage, OfAHangHasTheVerdict) {
  CoreUnderTest job(Settings(2, 2));
  job.RunWith(2);
  JobProgress progress;
  hangs::SayVerdict say{.reason = "nothing has moved for 600 s"};
  progress.OnOrders({hangs::OrderTo{Incarnation(1), say}}, job.now);
  job.Advance(5, {1, 2});
  StatusPage page = PageOf(job, &progress);
  EXPECT_EQ(page.health.state, kHung);
  EXPECT_THAT(page.health.text, HasSubstr("nothing has moved for 600 s"));
  EXPECT_EQ(page.health.for_seconds, 5);
  // The next round is another matter, but what has been is told.
  progress.StartRound();
  page = PageOf(job, &progress);
  EXPECT_EQ(page.health.state, kHealthy);
  EXPECT_THAT(page.last_incident.text, HasSubstr("nothing has moved"));
  EXPECT_EQ(page.last_incident.ago_seconds, 5);
}

TEST(MakeStatusPage, OfANoticeWaitsUntilItGoesOn) {
  CoreUnderTest job(Settings(2, 2));
  job.RunWith(2);
  JobProgress progress;
  progress.OnOrders({hangs::OrderTo{Incarnation(1), hangs::SayNotice{.text = "rank 1 is late"}}},
                    job.now);
  EXPECT_EQ(PageOf(job, &progress).health.state, kWaiting);
  EXPECT_EQ(PageOf(job, &progress).health.text, "rank 1 is late");
  progress.OnOrders({hangs::OrderTo{Incarnation(1), hangs::SayRecovery{}}}, job.now);
  EXPECT_EQ(PageOf(job, &progress).health.state, kHealthy);
}

TEST(MakeStatusPage, OfANodeThatDoesNotPassItsCheckSaysWhyForAsLongAsItIsThere) {
  CoreUnderTest job(Settings(1, 2, 3));
  job.RunWith(2);
  job.Fail(2);
  job.Join(1);
  job.Report(2).check = CheckState{};
  job.Join(2);
  EXPECT_EQ(PageOf(job).members[1].state, "checking");
  job.Report(2).check->failure = "the node check doctor exited with code 1: GPU 3 is gone";
  job.Join(2);
  job.Report(3).check = CheckState{.failure = "the node check doctor did not end within 1m"};
  job.Join(3);
  const StatusPage page = PageOf(job);
  EXPECT_EQ(page.nodes.unfit, 2);
  ASSERT_THAT(page.members, SizeIs(3));
  EXPECT_EQ(page.members[1].name, "node2");
  EXPECT_EQ(page.members[1].state, "unfit");
  EXPECT_THAT(page.members[1].check, HasSubstr("GPU 3 is gone"));
  EXPECT_EQ(page.members[2].state, "unfit");
  EXPECT_GT(page.members[2].lease_seconds, 0);
  job.Leave(3, {.reason = "node3 was told to end"});
  EXPECT_THAT(PageOf(job).members, SizeIs(2));
}

TEST(MakeStatusPage, OfAThousandNodesFitsAnAnswer) {
  CoreUnderTest job(Settings(1000, 1000));
  job.RunWith(1000);
  JobProgress progress;
  for (int node = 1; node <= 1000; ++node) {
    progress.OnSummary(Incarnation(node), SummaryAt(500, 2 * node - 1, node == 700 ? 480 : 499),
                       job.now);
  }
  const StatusPage page = PageOf(job, &progress);
  EXPECT_THAT(page.members, SizeIs(1000));
  EXPECT_EQ(page.progress.slowest_rank, 1399);
  EXPECT_EQ(page.progress.lag_steps, 20);
  EXPECT_LT(ToJson(page).size(), size_t{1} << 20);
}

}  // namespace
}  // namespace muster::status
