#include "muster/plan_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PlanFromArguments, ReadsAPlanAndWhatItTrains) {
  const auto asked = PlanFromArguments({"--plan=zero-2", "--train_batch_size=16", "--batch_size=2"},
                                       {.world_size = 2, .of_node = 2});
  ASSERT_THAT(asked, IsOk());
  EXPECT_EQ(asked->plan.preset, "zero-2");
  EXPECT_EQ(asked->plan.accumulation, 4);
}

// In the words of muster-train.
TEST(PlanFromArguments, RefusesWhatCanOnlyBePlannedAndNamesTheOption) {
  EXPECT_THAT(PlanFromArguments({"--model=llama-3-8b"}, {}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("--model=llama-3-8b"), HasSubstr("can be planned"),
                             HasSubstr("or the name of a gpt2"))));
  EXPECT_THAT(PlanFromArguments({"--device=cuda", "--offload_optimizer=cpu"}, {}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("--offload_optimizer=cpu: this version keeps the optimizer "
                                       "on the device; give --offload_optimizer=none"),
                             HasSubstr("--device=cpu"))));
  EXPECT_THAT(PlanFromArguments({"--offload_parameters=nvme"}, {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("--offload_parameters=none")));
  EXPECT_THAT(PlanFromArguments({"--offload_optimizer=cpu"}, {}), IsOk());
}

}  // namespace
}  // namespace muster
