// The training program of the guide deploy/docs/train.md does what the guide says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GuideProgram : public JobTest {
 protected:
  const std::string text_ = absl::StrCat(kSourceDirectory, "/tests/data/prose.txt");
};

// The number after "step 100  loss ".
double LossAfter(const std::string& out, const std::string& step) {
  const size_t at = out.find(step);
  return at == std::string::npos ? -1 : std::stod(out.substr(at + step.size()));
}

TEST_F(GuideProgram, IsShorterThanSixtyLines) {
  const std::string guide = ReadFile(absl::StrCat(kSourceDirectory, "/deploy/docs/train.md"));
  const size_t begin = guide.find("```cpp\n");
  ASSERT_NE(begin, std::string::npos);
  const size_t end = guide.find("\n```", begin);
  EXPECT_LT(std::count(guide.begin() + begin, guide.begin() + end, '\n'), 60);
}

TEST_F(GuideProgram, TrainsOnTwoRanksToAFallingLossAndLeavesACheckpoint) {
  const SubprocessResult result =
      Start({"run", "--nproc_per_node=2", Built("guide_program"), text_}).Wait(absl::Seconds(100));
  EXPECT_THAT(result, ExitsWith(0));
  const double early = LossAfter(result.out, "step  20  loss ");
  const double late = LossAfter(result.out, "step 100  loss ");
  EXPECT_GT(early, late + 0.2) << result.out;
  EXPECT_GT(late, 0) << result.out;
  EXPECT_THAT(FilesBelow(directory() + "/checkpoint/step_00000100"),
              ElementsAre("digests.sha256", "slices_00000.safetensors", "slices_00001.safetensors",
                          "training.json"));
}

TEST_F(GuideProgram, SaysWhichFileIsMissing) {
  const SubprocessResult result =
      Run({"run", "--nproc_per_node=2", Built("guide_program"), Out("nothing.txt")});
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, HasSubstr("nothing.txt"));
}

}  // namespace
}  // namespace muster::testing
