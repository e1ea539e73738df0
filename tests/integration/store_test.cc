// The way of a request from a worker over its agent to the rendezvous and back, across two nodes
// and two rounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
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
          {"--nproc_per_node=2", "--max_restarts=1", "--no_python", Built("store_probe")}));
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

using WorkersSocket = JobTest;

TEST_F(WorkersSocket, AChildOfAWorkerSpeaksAsItsWorkerAndOfStepsThatThereAre) {
  const std::string script = PythonScript("asks.py", R"py(import os, subprocess, sys
if os.environ["LOCAL_RANK"] == "1":
    sys.exit(0)
for said, step in (0, 5), (1, 5), (7, 5), (-5, 5), (4000000, 5), (0, 10**12):
    ask = "import muster_job; print(%d, %d, muster_job.commit_checkpoint(%d))" % (said, step, step)
    child = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True,
                           env={**os.environ, "MUSTER_LOCAL_RANK": str(said)})
    print(child.stdout or child.stderr.splitlines()[-1])
    print(child.stderr, file=sys.stderr)
)py");
  const SubprocessResult result =
      Run({"run", "--nproc_per_node=2", script},
          {{"PYTHONPATH", absl::StrCat(kSourceDirectory, "/deploy/python")}});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, AllOf(HasSubstr("0 5 yes"), HasSubstr("1 5 not now"),
                                HasSubstr("7 5 not now"), HasSubstr("-5 5 not now"),
                                HasSubstr("4000000 5 not now"), HasSubstr("is no step; 0 to")));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("says that it is of local rank 1, and is of local rank 0"),
                    HasSubstr("local rank 7; this node has 2 workers, from 0")));
}

}  // namespace
}  // namespace muster::testing
