// Unmodified PyTorch on Gloo under `muster run`. Skipped where PyTorch is not installed
// (`deploy/dev deps --peers`).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr char kPython[] = "/usr/bin/python3";
// Two workers that import PyTorch beside other tests on a small machine.
constexpr absl::Duration kPatienceWithTorch = absl::Seconds(100);

class Torch : public SeveralNodes {
 protected:
  void SetUp() override {
    SeveralNodes::SetUp();
    Subprocess import = StartProgram({kPython, "-c", "import torch.distributed"});
    if (import.Wait(kPatienceWithTorch).exit_code != 0)
      GTEST_SKIP() << kPython << " cannot import torch";
  }
  static std::string Program(const std::string& name) {
    return absl::StrCat(kSourceDirectory, "/tests/integration/programs/", name);
  }
  const Environment changes_ = {{"PYTHON_EXEC", kPython}, {"GLOO_SOCKET_IFNAME", "lo"}};
};

TEST_F(Torch, TrainsWithDistributedDataParallelOnOneNode) {
  const SubprocessResult result =
      Start({"run", "--nproc_per_node=2", Program("train_ddp.py")}, changes_)
          .Wait(kPatienceWithTorch);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, AllOf(HasSubstr("rank 0 of 2: parameters agree"),
                                HasSubstr("rank 1 of 2: parameters agree")));
}

TEST_F(Torch, TrainsWithDistributedDataParallelOnTwoNodes) {
  std::vector<Subprocess> agents;
  for (int node : {0, 1})
    agents.push_back(StartStatic(node, 2, {Program("train_ddp.py")}, changes_));
  std::string out;
  for (Subprocess& agent : agents) {
    const SubprocessResult result = agent.Wait(kPatienceWithTorch);
    EXPECT_THAT(result, ExitsWith(0));
    out += result.out;
  }
  EXPECT_THAT(out, AllOf(HasSubstr("rank 0 of 2: parameters agree"),
                         HasSubstr("rank 1 of 2: parameters agree")));
}

TEST_F(Torch, TrainsOnAfterARestart) {
  const SubprocessResult result = Start({"run", "--nproc_per_node=2", "--max_restarts=1",
                                         Program("train_ddp.py"), "--fail-once"},
                                        changes_)
                                      .Wait(kPatienceWithTorch);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("rank 1 of 2: parameters agree"));
}

TEST_F(Torch, ShowsTheExceptionOfARecordedFailureInTheSummary) {
  const SubprocessResult result =
      Start({"run", "--nproc_per_node=2", Program("record_failure.py")}, changes_)
          .Wait(kPatienceWithTorch);
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err,
              AllOf(ContainsRegex("rank[^0-9]*1"), HasSubstr("ValueError: loss is NaN at step 3")));
}

}  // namespace
}  // namespace muster::testing
