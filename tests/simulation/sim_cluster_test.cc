// A fixed range of seeds; `deploy/dev simulate --seeds=N` runs more, `--seed=N` one with its trace.
#include "tests/simulation/sim_cluster.h"

#include "gtest/gtest.h"
#include "tests/simulation/simulate.h"

namespace muster::simulation {
namespace {

constexpr uint64_t kNumSeeds = 1000;

TEST(SimCluster, KeepsItsInvariantsAndComesToAnEndInEverySeed) {
  SimCoverage coverage;
  ASSERT_EQ(RunSeeds(1, kNumSeeds, coverage), "");
  // A simulation in which nothing happens proves nothing.
  EXPECT_GT(coverage.rounds, 0);
  EXPECT_GT(coverage.restarts, 0);
  EXPECT_GT(coverage.membership_changes, 0);
  EXPECT_GT(coverage.losses, 0);
  EXPECT_GT(coverage.deaths_noticed, 0);
  EXPECT_GT(coverage.successes, 0);
  EXPECT_GT(coverage.job_failures, 0);
  EXPECT_GT(coverage.timeouts, 0);
  EXPECT_GT(coverage.unrecorded_rounds, 0);
  EXPECT_GT(coverage.silences, 0);
  EXPECT_GT(coverage.held_back, 0);
  EXPECT_GT(coverage.unique_ids, 0);
  EXPECT_GT(coverage.strangers_survived, 0);
  EXPECT_GT(coverage.restored_jobs, 0);
  EXPECT_GT(coverage.commits, 0);
  EXPECT_GT(coverage.commits_refused, 0);
  EXPECT_GT(coverage.misfits_refused, 0);
  EXPECT_GT(coverage.states_damaged, 0);
  EXPECT_GT(coverage.writes_lost, 0);
  EXPECT_GT(coverage.lies, 0);
  EXPECT_GT(coverage.growths_at_commits, 0);
  EXPECT_GT(coverage.stops_at_one_step, 0);
  EXPECT_GT(coverage.jobs_stopped, 0);
  EXPECT_GT(coverage.nodes_drained, 0);
  EXPECT_GT(coverage.nodes_replaced, 0);
  EXPECT_GT(coverage.stops_by_signals, 0);
  EXPECT_GT(coverage.stops_restored, 0);
  EXPECT_GT(coverage.kept, 0);
  EXPECT_GT(coverage.parked_deaths, 0);
  EXPECT_GT(coverage.survivors_ended, 0);
  EXPECT_GT(coverage.inquiries, 0);
  EXPECT_GT(coverage.signals_kept, 0);
  EXPECT_GT(coverage.failures_kept, 0);
  EXPECT_GT(coverage.rounds_checked, 0);
  EXPECT_GT(coverage.rounds_parted, 0);
  EXPECT_GT(coverage.jobs_parted, 0);
  EXPECT_GT(coverage.checks_passed, 0);
  EXPECT_GT(coverage.checks_failed, 0);
  EXPECT_GT(coverage.rounds_without_unfit, 0);
}

TEST(SimCluster, IsTheSameRunForTheSameSeed) {
  SimCluster first(7, SimCluster::PlanOf(7), false);
  SimCluster second(7, SimCluster::PlanOf(7), false);
  EXPECT_EQ(first.Run(), second.Run());
  EXPECT_EQ(first.coverage().rounds, second.coverage().rounds);
  EXPECT_EQ(first.coverage().losses, second.coverage().losses);
}

}  // namespace
}  // namespace muster::simulation
