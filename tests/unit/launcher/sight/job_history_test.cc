#include "launcher/sight/job_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/sight/report_text.h"
#include "tests/unit/launcher/sight/job_diaries.h"

namespace muster::launcher {
namespace {

using status::Spent;
using ::testing::HasSubstr;
using ::testing::SizeIs;

double SpentOn(const JobHistory& job, Spent spent) {
  return job.spent_seconds[static_cast<size_t>(spent)];
}

TEST(JobHistory, PutsTheNodesOnOneClock) {
  const JobHistory job = TwoNodes();
  EXPECT_EQ(job.run_id, "train");
  ASSERT_THAT(job.nodes, SizeIs(2));
  EXPECT_EQ(job.nodes[0].node, "node1") << "by rank";
  EXPECT_EQ(job.nodes[1].began, 2);
  EXPECT_NEAR(job.seconds, 42, 1e-6);
  EXPECT_TRUE(job.nodes[0].has_end);
}

TEST(JobHistory, SumsWhatTimeWasSpentOn) {
  const JobHistory job = TwoNodes();
  EXPECT_NEAR(SpentOn(job, Spent::kRunning), 2 * (10 + 10 + 10), 1e-6);
  EXPECT_NEAR(SpentOn(job, Spent::kHung), 2 * 4, 1e-6);
  EXPECT_NEAR(SpentOn(job, Spent::kForming), 5 + 3 + 2 * 2, 1e-6);
  EXPECT_NEAR(job.node_seconds, 42 + 40, 1e-6) << "all of it is spent on something";
  EXPECT_NEAR(job.goodput(), 60.0 / 82, 1e-6);
}

TEST(JobHistory, TellsOfEachRoundHowFarItCameAndWhoEndedIt) {
  const JobHistory job = TwoNodes();
  ASSERT_THAT(job.rounds, SizeIs(2));
  EXPECT_EQ(job.rounds[0].shape.world_size, 4);
  EXPECT_NEAR(job.rounds[0].ran, 10, 1e-6);
  EXPECT_EQ(job.rounds[0].step, 50);
  EXPECT_EQ(job.rounds[0].slowest_step, 49);
  EXPECT_THAT(job.rounds[0].slowest_rank, ::testing::AnyOf(1, 3));
  EXPECT_EQ(job.rounds[0].ended_by, "rank 3 on node2: exit code 7: ValueError: bad <batch>");
  EXPECT_EQ(job.rounds[1].step, 120);
  EXPECT_NEAR(job.rounds[1].ran, 24, 1e-6) << "with what it hung";
}

TEST(JobHistory, TellsHowTheWorkersOfARoundCameBackAndAfterHowLong) {
  const JobHistory job = TwoNodes();
  EXPECT_EQ(job.rounds[0].starts.fresh, 4);
  EXPECT_LT(job.rounds[0].back_after, 0) << "nothing had broken off";
  const RoundHistory& again = job.rounds[1];
  EXPECT_EQ(again.starts.kept, 2);
  EXPECT_EQ(again.starts.forked, 1);
  EXPECT_EQ(again.starts.fresh, 1);
  EXPECT_EQ(again.why_afresh, "the warm process is not ready yet");
  EXPECT_NEAR(again.back_after, 20.5 - 15, 1e-6) << "the last of its nodes, since the failure";
}

TEST(JobHistory, NamesAnIncidentOnceThoughEveryNodeWritesIt) {
  EXPECT_THAT(TwoNodes().incidents, SizeIs(1));
}

TEST(JobHistory, TellsTwoAgentsOfOneMachineApart) {
  const auto job =
      MakeHistory({{.diary = DiaryOf("host", 0, 0)}, {.diary = DiaryOf("host", 2, 2)}});
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->nodes[0].node, "host");
  EXPECT_EQ(job->nodes[1].node, "host (2)");
  EXPECT_EQ(job->rounds[0].ended_by, "rank 3 on host (2): exit code 7: ValueError: bad <batch>");
  EXPECT_THAT(EventsOf(*job, {status::kNotice}), SizeIs(1)) << "what both wrote is told once";
}

TEST(JobHistory, TakesADiaryThatBreaksOffForOneWithoutAnEnd) {
  std::string diary = DiaryOf("node1", 0, 0);
  diary.resize(diary.size() * 2 / 3);
  const auto job = MakeHistory({{.diary = diary}});
  ASSERT_TRUE(job.ok());
  EXPECT_FALSE(job->nodes[0].has_end);
  EXPECT_FALSE(job->end.has_value());
  EXPECT_GT(job->seconds, 10);
}

TEST(JobHistory, IsNoneWithoutADiary) {
  EXPECT_EQ(MakeHistory({}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MakeHistory({{.diary = "nonsense\n"}}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(
          MakeHistory({{.diary = "{\"what\":\"began\",\"schema\":9}\n"}}).status().message()),
      HasSubstr("schema 9"));
}

}  // namespace
}  // namespace muster::launcher
