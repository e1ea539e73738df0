// Swarm of seeds. `sim_cluster_test --seed=N` replays one with its whole trace; `--seeds=A-B` runs
// a range.
#include "tests/simulation/sim_cluster.h"

#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace muster::simulation {
namespace {

constexpr uint64_t kNumSeeds = 1000;

TEST(SimCluster, KeepsItsInvariantsAndComesToAnEndInEverySeed) {
  SimCoverage coverage;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    SimCluster cluster(seed, false);
    ASSERT_EQ(cluster.Run(), "");
    coverage.Add(cluster.coverage());
  }
  // A simulation in which nothing happens proves nothing.
  EXPECT_GT(coverage.rounds, 0);
  EXPECT_GT(coverage.restarts, 0);
  EXPECT_GT(coverage.membership_changes, 0);
  EXPECT_GT(coverage.losses, 0);
  EXPECT_GT(coverage.successes, 0);
  EXPECT_GT(coverage.job_failures, 0);
  EXPECT_GT(coverage.timeouts, 0);
}

TEST(SimCluster, IsTheSameRunForTheSameSeed) {
  SimCluster first(7, false);
  SimCluster second(7, false);
  EXPECT_EQ(first.Run(), second.Run());
  EXPECT_EQ(first.coverage().rounds, second.coverage().rounds);
  EXPECT_EQ(first.coverage().losses, second.coverage().losses);
}

int Replay(uint64_t first, uint64_t last) {
  for (uint64_t seed = first; seed <= last; ++seed) {
    SimCluster cluster(seed, first == last);
    const std::string broken = cluster.Run();
    if (broken.empty()) continue;
    std::fprintf(stderr, "%s\n", broken.c_str());
    return 1;
  }
  std::fprintf(stderr, "seeds %lu to %lu: nothing broke\n", static_cast<unsigned long>(first),
               static_cast<unsigned long>(last));
  return 0;
}

}  // namespace
}  // namespace muster::simulation

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    uint64_t first = 0;
    uint64_t last = 0;
    if (absl::ConsumePrefix(&argument, "--seed=") && absl::SimpleAtoi(argument, &first)) {
      return muster::simulation::Replay(first, first);
    }
    if (absl::ConsumePrefix(&argument, "--seeds=")) {
      const std::pair<std::string, std::string> range = absl::StrSplit(argument, '-');
      if (absl::SimpleAtoi(range.first, &first) && absl::SimpleAtoi(range.second, &last)) {
        return muster::simulation::Replay(first, last);
      }
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
