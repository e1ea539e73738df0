#include "rendezvous/status/job_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/prometheus_text.h"

namespace muster::status {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Samples;
using testing::WhatIsWrongWith;

StatusPage RunningJob() {
  StatusPage page{.job = "train"};
  page.health = {.state = kHealthy, .for_seconds = 12};
  page.round = {.round = 3, .phase = "running", .num_nodes = 2, .world_size = 8};
  page.nodes = {.min = 1, .max = 2, .running = 2};
  page.restarts = {.used = 1, .max = 5};
  page.progress = {.step = 100, .steps_per_second = 2.5, .slowest_rank = 7, .lag_steps = 4};
  page.members = {{.name = "node1",
                   .node_rank = 0,
                   .first_rank = 0,
                   .num_ranks = 4,
                   .state = "running",
                   .lease_seconds = 5.5,
                   .step = 100},
                  {.name = "node2",
                   .node_rank = 1,
                   .first_rank = 4,
                   .num_ranks = 4,
                   .state = "running",
                   .lease_seconds = 4.5,
                   .step = 96},
                  {.name = "spare", .num_ranks = 4, .state = "spare", .lease_seconds = 6}};
  return page;
}

TEST(JobMetrics, AreTheFiguresOfTheStatus) {
  const std::string text = JobMetrics({RunningJob()}, "0.1.0");
  Samples samples;
  EXPECT_EQ(WhatIsWrongWith(text, &samples), "");
  EXPECT_EQ(samples["muster_build_info{version=\"0.1.0\"}"], 1);
  EXPECT_EQ(samples["muster_jobs"], 1);
  EXPECT_EQ(samples["muster_job_health{run_id=\"train\",state=\"healthy\"}"], 1);
  EXPECT_EQ(samples.at("muster_job_health{run_id=\"train\",state=\"hung\"}"), 0);
  EXPECT_EQ(samples["muster_job_phase{run_id=\"train\",phase=\"running\"}"], 1);
  EXPECT_EQ(samples["muster_job_step{run_id=\"train\"}"], 100);
  EXPECT_EQ(samples["muster_job_steps_per_second{run_id=\"train\"}"], 2.5);
  EXPECT_EQ(samples["muster_job_lag_steps{run_id=\"train\"}"], 4);
  EXPECT_EQ(samples["muster_job_restarts_total{run_id=\"train\"}"], 1);
  EXPECT_EQ(samples["muster_job_nodes{run_id=\"train\",state=\"running\"}"], 2);
  EXPECT_EQ(samples["muster_node_lease_seconds{run_id=\"train\",node=\"node2\",node_rank=\"1\"}"],
            4.5);
  EXPECT_THAT(text, Not(HasSubstr("spare\""))) << "it has no rank";
}

TEST(JobMetrics, OfSeveralJobsAreFamilyByFamily) {
  StatusPage other = RunningJob();
  other.job = "other \"job\"";
  other.progress = {};
  const std::string text = JobMetrics({RunningJob(), other}, "0.1.0");
  Samples samples;
  EXPECT_EQ(WhatIsWrongWith(text, &samples), "");
  EXPECT_EQ(samples["muster_jobs"], 2);
  EXPECT_THAT(text, Not(HasSubstr("muster_job_step{run_id=\"other"))) << "it is not known";
}

TEST(JobMetrics, OfNoJobAreStillMetrics) {
  EXPECT_EQ(WhatIsWrongWith(JobMetrics({}, "0.1.0")), "");
}

TEST(JobMetrics, HaveABoundOfNodes) {
  StatusPage page = RunningJob();
  page.members.clear();
  for (int i = 0; i < 3000; ++i) {
    page.members.push_back({.name = absl::StrCat("n", i),
                            .node_rank = i,
                            .first_rank = i,
                            .num_ranks = 1,
                            .state = "running",
                            .lease_seconds = 1});
  }
  const std::string text = JobMetrics({page}, "0.1.0");
  EXPECT_THAT(text, HasSubstr("\"n1023\""));
  EXPECT_THAT(text, Not(HasSubstr("\"n1024\"")));
}

}  // namespace
}  // namespace muster::status
