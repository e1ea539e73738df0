#include "worker_runtime/train/memory_check.h"

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
      .layers = 48, .heads = 25, .width = 1600, .context = 1024, .vocabulary = 50257};
  EXPECT_THAT(CheckFitsMachine(gpt2, DType::kF32, 1, 24 * kGigabyte),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("24.9 GB"), HasSubstr("24.0 GB"), HasSubstr("width"))));
}

TEST(CheckFitsMachine, CountsAllRanksOfTheMachine) {
  const int64_t bytes_of_one = 4 * 4 * GptConfig().num_parameters();
  EXPECT_THAT(CheckFitsMachine(GptConfig(), DType::kF32, 1, bytes_of_one), IsOk());
  EXPECT_THAT(CheckFitsMachine(GptConfig(), DType::kF32, 2, bytes_of_one),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 ranks")));
}

}  // namespace
}  // namespace muster::train
