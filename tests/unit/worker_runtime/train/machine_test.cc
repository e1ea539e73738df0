#include "worker_runtime/train/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace muster::train {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGigabyte = 1'000'000'000;

TEST(CheckFitsMachine, AcceptsAModelWhoseStateFits) {
  EXPECT_THAT(CheckFitsMachine(GptConfig(), DType::kF32, 2, kGigabyte), IsOk());
}

TEST(CheckFitsMachine, RefusesAModelThatNoActivationWouldFitBeside) {
  const GptConfig gpt2 = {
      .layers = 48, .heads = 25, .hidden_size = 1600, .context = 1024, .vocabulary = 50257};
  EXPECT_THAT(
      CheckFitsMachine(gpt2, DType::kF32, 1, 24 * kGigabyte),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("24.9 GB"), HasSubstr("24.0 GB"), HasSubstr("hidden size"))));
}

TEST(CheckFitsMachine, CountsAllRanksOfTheMachine) {
  const int64_t bytes_of_one = 4 * 4 * GptConfig().num_parameters();
  EXPECT_THAT(CheckFitsMachine(GptConfig(), DType::kF32, 1, bytes_of_one), IsOk());
  EXPECT_THAT(CheckFitsMachine(GptConfig(), DType::kF32, 2, bytes_of_one),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 ranks")));
}

TEST(ResidentBytes, ReadsTheKernelsText) {
  EXPECT_EQ(ResidentBytes("Name:\tx\nVmHWM:\t   9 kB\nVmRSS:\t   27844 kB\nThreads: 3\n"),
            27844 * 1024);
}

TEST(ResidentBytes, AreNotKnownFromAnythingElse) {
  EXPECT_EQ(ResidentBytes(""), 0);
  EXPECT_EQ(ResidentBytes("VmRSS:\tmany kB\n"), 0);
}

TEST(CheckStepFitsMachine, CountsActivationsOfAllRanksToo) {
  EXPECT_THAT(CheckStepFitsMachine(kGigabyte, 2, 2 * kGigabyte), IsOk());
  EXPECT_THAT(CheckStepFitsMachine(kGigabyte, 3, 2 * kGigabyte),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 ranks")));
}

}  // namespace
}  // namespace muster::train
