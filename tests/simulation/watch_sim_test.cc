// A fixed range of seeds of the hang watch.
#include "tests/simulation/watch_sim.h"

#include "gtest/gtest.h"

namespace muster::simulation {
namespace {

constexpr uint64_t kNumSeeds = 100;

TEST(WatchSim, JudgesNobodyWhoIsInnocentAndMissesNoHangInAnySeed) {
  WatchCoverage coverage;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    ASSERT_EQ(WatchSim(seed).Run(coverage), "");
  }
  // A simulation in which nothing happens proves nothing.
  EXPECT_GT(coverage.hangs, 0);
  EXPECT_GT(coverage.mismatches, 0);
  EXPECT_GT(coverage.stops, 0);
  EXPECT_GT(coverage.absences, 0);
  EXPECT_GT(coverage.late_starts, 0);
  EXPECT_GT(coverage.wrong_boards, 0);
  EXPECT_GT(coverage.notices, 0);
  EXPECT_GT(coverage.verdicts, 0);
  EXPECT_GT(coverage.recoveries, 0);
  EXPECT_GT(coverage.unanswered, 0);
  EXPECT_GT(coverage.paused_agents, 0);
  EXPECT_GT(coverage.suspended_nodes, 0);
  EXPECT_GT(coverage.clock_jumps, 0);
  EXPECT_GT(coverage.long_phases, 0);
  EXPECT_GT(coverage.server_restarts, 0);
  EXPECT_GT(coverage.replacements, 0);
  EXPECT_GT(coverage.not_replaced, 0);
  EXPECT_GT(coverage.aborts_told, 0);
  EXPECT_GT(coverage.aborts_told_late, 0);
  EXPECT_GT(coverage.aborts_at_a_stop, 0);
}

}  // namespace
}  // namespace muster::simulation
