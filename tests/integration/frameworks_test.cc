// Frameworks that know torchrun, under muster: accelerate's own test scripts, Lightning, and what
// `deepspeed` gives to workers; also where srun starts the agents. Skipped where they are missing
// (`deploy/dev deps --peers`).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"
#include "tests/support/slurm_cluster.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kProgram[] = MUSTER_SOURCE_DIRECTORY "/tests/integration/programs/frameworks.py";
// PyTorch takes a while to import beside other tests on a small machine.
constexpr absl::Duration kPatienceWithTorch = absl::Minutes(4);

class FrameworksTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  }

  static Environment Changes() {
    return {
        {"PYTHON_EXEC", PeerPython()}, {"ACCELERATE_USE_CPU", "true"}, {"OMP_NUM_THREADS", "1"}};
  }

  std::vector<std::string> WhatRanksSay(int world_size) const {
    std::vector<std::string> said;
    for (int rank = 0; rank < world_size; ++rank)
      said.push_back(ReadOut(absl::StrCat("rank.", rank)));
    return said;
  }
};

class AccelerateScript : public FrameworksTest,
                         public ::testing::WithParamInterface<const char*> {};

TEST_P(AccelerateScript, Passes) {
  Environment changes = Changes();
  changes["GLOO_SOCKET_IFNAME"] = "lo";
  const SubprocessResult result =
      Start({"--nproc_per_node=2", kProgram, GetParam()}, changes).Wait(kPatienceWithTorch);
  if (absl::StrContains(ReadOut("rank.0"), "not installed")) GTEST_SKIP() << ReadOut("rank.0");
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(WhatRanksSay(2), ::testing::Each("passed\n"));
}

INSTANTIATE_TEST_SUITE_P(OfAccelerate, AccelerateScript,
                         ::testing::Values("test_script", "test_sync", "test_ops"),
                         [](const auto& param) { return param.param; });

TEST_F(FrameworksTest, LightningTakesItsRanksFromUs) {
  Environment changes = Changes();
  changes["GLOO_SOCKET_IFNAME"] = "lo";
  const SubprocessResult result =
      Start({"--nproc_per_node=2", kProgram, "lightning"}, changes).Wait(kPatienceWithTorch);
  if (absl::StrContains(ReadOut("rank.0"), "not installed")) GTEST_SKIP() << ReadOut("rank.0");
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(WhatRanksSay(2),
              ::testing::ElementsAre("0 of 2 on node 0: 2\n", "1 of 2 on node 0: 2\n"));
}

// Slurm's variables are there too, and Lightning and accelerate know them.
TEST_F(FrameworksTest, TheyFindTheirRanksUnderSrunWithoutOptions) {
  if (!SlurmCluster::WhyNot().empty()) GTEST_SKIP() << SlurmCluster::WhyNot();
  const SlurmCluster cluster;
  ASSERT_EQ(cluster.trouble(), "");
  Environment changes = Changes();
  changes["SLURM_CONF"] = cluster.conf();
  changes["PATH"] = absl::StrCat(MUSTER_BINARY_DIRECTORY, ":/usr/local/bin:/usr/bin:/bin");
  const auto srun = [&](const char* program) {
    return StartProgram(cluster.OnLoginNode({"/usr/bin/srun", "-N2", "--ntasks-per-node=1",
                                             MusterBinary(), kProgram, program}),
                        changes)
        .Wait(kPatienceWithTorch);
  };
  const SubprocessResult accelerate = srun("test_ops");
  if (absl::StrContains(ReadOut("rank.0"), "not installed")) GTEST_SKIP() << ReadOut("rank.0");
  EXPECT_THAT(accelerate, ExitsWith(0));
  EXPECT_THAT(WhatRanksSay(2), ::testing::Each("passed\n"));
  const SubprocessResult lightning = srun("lightning");
  if (absl::StrContains(ReadOut("rank.0"), "not installed")) GTEST_SKIP() << ReadOut("rank.0");
  EXPECT_THAT(lightning, ExitsWith(0));
  EXPECT_THAT(WhatRanksSay(2),
              ::testing::ElementsAre("0 of 2 on node 0: 2\n", "1 of 2 on node 1: 2\n"));
}

TEST_F(FrameworksTest, WorkersFindWhatDeepSpeedGivesThem) {
  const std::string deepspeed = PeerPython().substr(0, PeerPython().rfind('/') + 1) + "deepspeed";
  if (access(deepspeed.c_str(), X_OK) != 0) GTEST_SKIP() << deepspeed << " is not installed";
  // What a machine without GPUs shows of them differs.
  const std::string script = PythonScript("show.py", R"(import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE",
         "MASTER_ADDR")
with open(os.environ["SHOW"] + os.environ["RANK"], "w") as file:
    print(sys.argv[1:], [(name, os.environ.get(name)) for name in names], file=file)
)");
  const Arguments job = {"--num_gpus=2", script, "--lr", "1"};
  const SubprocessResult theirs = PeersOutcome([&] {
    return StartProgram(Arguments{PeerPython(), deepspeed} + job, {{"SHOW", Out("theirs.")}})
        .Wait(kPatienceWithTorch);
  });
  if (absl::StrContains(theirs.err, "ModuleNotFoundError")) {
    GTEST_SKIP() << "what deepspeed needs is not installed";
  }
  ASSERT_THAT(theirs, ExitsWith(0));
  EXPECT_THAT(Run(job, {{"SHOW", Out("ours.")}, {"PYTHON_EXEC", PeerPython()}}), ExitsWith(0));
  EXPECT_EQ(ReadOut("ours.0"), ReadOut("theirs.0"));
  EXPECT_EQ(ReadOut("ours.1"), ReadOut("theirs.1"));
  EXPECT_THAT(ReadOut("ours.1"), HasSubstr("--local_rank=1"));
}

}  // namespace
}  // namespace muster::testing
