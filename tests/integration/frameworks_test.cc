// Frameworks that know torchrun, in workers of ours: accelerate, by its own test scripts too, and
// Lightning; also where srun starts the agents. Skipped where they are missing (`deploy/dev deps
// --peers`).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"
#include "tests/support/peer_record.h"
#include "tests/support/slurm_cluster.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

const std::string kProgram =
    absl::StrCat(kSourceDirectory, "/tests/integration/programs/frameworks.py");
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
  changes["PATH"] = absl::StrCat(kBinaryDirectory, ":/usr/local/bin:/usr/bin:/bin");
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

// What `accelerate launch` gives them is in accelerate_test.
struct Line {
  const char* name;
  Arguments options;
};

class OneProcess : public FrameworksTest, public ::testing::WithParamInterface<Line> {};

TEST_P(OneProcess, PreparesAModelAsUnderAccelerateLaunch) {
  const Arguments rest = GetParam().options +
                         Arguments{PythonScript("prepare.py", R"(import accelerate, json, os, torch
state = accelerate.Accelerator()
model = state.prepare(torch.nn.Linear(2, 2))
with open(os.environ["SHOW"], "w") as file:
    json.dump([str(state.distributed_type), type(model).__name__, *model.state_dict()], file)
)")};
  const nlohmann::json theirs = PeerRecord("accelerate", "accelerate").Outcome("", [&] {
    const SubprocessResult result =
        StartProgram(Arguments{PeerPython(), "-m", "accelerate.commands.launch"} + rest,
                     {{"SHOW", Out("theirs")}})
            .Wait(kPatienceWithTorch);
    return HasSucceeded(result) ? nlohmann::json::parse(ReadOut("theirs")) : nlohmann::json();
  });
  const SubprocessResult result = Start(Arguments{"accelerate", "launch"} + rest,
                                        {{"SHOW", Out("ours")}, {"PYTHON_EXEC", PeerPython()}})
                                      .Wait(kPatienceWithTorch);
  ASSERT_THAT(result, ExitsWith(0));
  EXPECT_EQ(nlohmann::json::parse(ReadOut("ours")), theirs);
}

INSTANTIATE_TEST_SUITE_P(
    OfAccelerate, OneProcess,
    ::testing::Values(Line{"cpu", {"--cpu"}}, Line{"counted", {"--num_processes=1"}},
                      Line{"of_two", {"--cpu", "--num_processes=2", "--main_process_port=7"}},
                      Line{"of_two_machines",
                           {"--num_machines=2", "--num_processes=2", "--machine_rank=1",
                            "--main_process_ip=127.0.0.1", "--main_process_port=7"}}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace muster::testing
