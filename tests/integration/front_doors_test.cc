// The doors of InstructLab's and DeepSpeed's users on one node. Accelerate's is accelerate_test's, host
// files are hosts_test's; what the real `deepspeed` does is beside ours in frameworks_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kInstructLab[] =
    "--ilab=" MUSTER_SOURCE_DIRECTORY "/tests/unit/launcher/configs/instructlab.yaml";

class FrontDoorsTest : public JobTest {
 protected:
  // A worker that notes what DeepSpeed's users find.
  std::string Teller() const {
    return ShellScript("tell",
                       "echo \"$LOCAL_RANK of $LOCAL_SIZE, $CROSS_RANK of $CROSS_SIZE,"
                       " gpus $CUDA_VISIBLE_DEVICES, $FROM_FILE: $*\" > \"$OUT/worker.$RANK\"");
  }
};

TEST_F(FrontDoorsTest, AFileOfInstructLabsStartsItsWorkersOfTheScript) {
  const SubprocessResult result = Run({kInstructLab, Teller(), "--lr", "1"});
  EXPECT_THAT(result, ExitsWith(0));
  for (const char* rank : {"0", "1", "2", "3"}) {
    EXPECT_EQ(ReadOut(absl::StrCat("worker.", rank)),
              absl::StrCat(rank, " of ,  of , gpus , : --lr 1\n"));
  }
  EXPECT_THAT(result.err, HasSubstr("that is for the program to read"));
}

TEST_F(FrontDoorsTest, AFileOfInstructLabsWithoutAScriptStartsNothingAndSaysSo) {
  const SubprocessResult result = Run({kInstructLab});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, AllOf(HasSubstr("no script was given"), HasSubstr("SCRIPT")));
  EXPECT_THAT(result.out, IsEmpty());
}

TEST_F(FrontDoorsTest, DeepSpeedsOptionsAloneStartWorkersOfThisNode) {
  WriteFile(environment().at("HOME") + "/.deepspeed_env", "FROM_FILE=a b\n");
  EXPECT_THAT(Run({"--num_gpus=2", Teller(), "x"}, {{"CUDA_VISIBLE_DEVICES", "4,5,7"}}),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.0"), "0 of 2, 0 of 1, gpus 4,5, a b: --local_rank=0 x\n");
  EXPECT_EQ(ReadOut("worker.1"), "1 of 2, 0 of 1, gpus 4,5, a b: --local_rank=1 x\n");
  EXPECT_THAT(Run({"--include", "localhost:0,2", "--no_local_rank", Teller(), "y"},
                  {{"CUDA_VISIBLE_DEVICES", "4,5,7"}}),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.1"), "1 of 2, 0 of 1, gpus 4,7, a b: y\n");
  EXPECT_THAT(Run({"--exclude=localhost:0", Teller()}, {{"CUDA_VISIBLE_DEVICES", "4,5"}}),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.0"), "0 of 1, 0 of 1, gpus 5, a b: --local_rank=0\n");
  EXPECT_THAT(Run({"--include=localhost:3", Teller()}, {{"CUDA_VISIBLE_DEVICES", "4,5"}}),
              ExitsWith(2));
}

}  // namespace
}  // namespace muster::testing
