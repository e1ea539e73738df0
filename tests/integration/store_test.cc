// The way of a request from a worker over its agent to the rendezvous and back, across two nodes
// and two rounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/several_nodes.h"

namespace muster::testing {
namespace {

using ::testing::StartsWith;

class StoreAcrossNodes : public SeveralNodes {
 protected:
  // What the probe of `rank` wrote in `round`, a line each: the id, the second try, keys met, sum,
  // time-out.
  std::vector<std::string> Seen(int round, int rank) const {
    std::vector<std::string> lines = absl::StrSplit(ReadOut(absl::StrCat(round, ".", rank)), '\n');
    lines.resize(5);
    return lines;
  }

  void RunProbes() {
    std::vector<Subprocess> agents;
    for (int node = 1; node <= 2; ++node) {
      agents.push_back(StartElastic(
          node, "2",
          {"--nproc_per_node=2", "--max_restarts=1", "--no_python", MUSTER_STORE_PROBE}));
    }
    for (const SubprocessResult& result : WaitForAll(agents)) EXPECT_THAT(result, ExitsWith(0));
  }
};

TEST_F(StoreAcrossNodes, GivesEveryRankTheUniqueIdOfItsRoundExactlyOnce) {
  RunProbes();
  for (int round = 0; round <= 1; ++round) {
    const std::string id = Seen(round, 0)[0];
    EXPECT_THAT(id, StartsWith(absl::StrCat("id of round ", round)));
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(Seen(round, rank)[0], id) << "rank " << rank;
      EXPECT_EQ(Seen(round, rank)[1], "ALREADY_EXISTS") << "rank " << rank;
    }
  }
  EXPECT_NE(Seen(0, 0)[0], Seen(1, 0)[0]);
}

TEST_F(StoreAcrossNodes, LetsRanksOfTwoNodesMeetAndTimesOutOnWhatNeverComes) {
  RunProbes();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Seen(1, rank)[2], "4") << "rank " << rank;
    EXPECT_EQ(Seen(1, rank)[3], "OK") << "rank " << rank;
    EXPECT_EQ(Seen(1, rank)[4], "DEADLINE_EXCEEDED") << "rank " << rank;
  }
}

}  // namespace
}  // namespace muster::testing
