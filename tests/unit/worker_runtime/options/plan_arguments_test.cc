#include "muster/plan_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/plan/known_models.h"

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

// The words are those of muster-train.
TEST(PlanFromArguments, TakesAKnownModelInSizesOfItsOwn) {
  const auto asked = PlanFromArguments(
      {"--model=qwen3-8b", "--num_layers=2", "--heads=4", "--num_key_value_heads=2",
       "--hidden_size=64", "--head_dim=32", "--intermediate_size=96"},
      {});
  ASSERT_THAT(asked, IsOk());
  DecoderConfig expected = *plan::FindKnownModel("qwen3-8b");
  expected.layers = 2;
  expected.heads = 4;
  expected.kv_heads = 2;
  expected.hidden_size = 64;
  expected.head_size = 32;
  expected.mlp_size = 96;
  EXPECT_EQ(asked->model, expected);
  EXPECT_THAT(PlanFromArguments({"--model=llama-3-8b", "--num_heads=4"}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("kv_heads must divide the heads: 4 is not a multiple of 8")));
}

TEST(PlanFromArguments, RefusesWhatCannotBeDoneAndNamesTheOption) {
  EXPECT_THAT(PlanFromArguments({"--device=cuda", "--offload_optimizer=cpu"}, {}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("--offload_optimizer=cpu: this version cannot offload the "
                                       "optimizer; give --offload_optimizer=none"),
                             HasSubstr("--device=cpu"))));
  EXPECT_THAT(PlanFromArguments({"--offload_parameters=nvme"}, {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("--offload_parameters=none")));
  EXPECT_THAT(PlanFromArguments({"--offload_optimizer=cpu"}, {}), IsOk());
}

TEST(PlanFromArguments, ReadsAScheduleThatIsAFile) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.File("my.schedule");
  const std::string flag = absl::StrCat("--stage_schedule=", path);
  const auto refusal = [](const std::vector<std::string>& arguments) {
    return std::string(PlanFromArguments(arguments, {.world_size = 2}).status().message());
  };
  EXPECT_THAT(refusal({"--stages=2", flag}), HasSubstr(absl::StrCat(flag, ": ")));
  testing::WriteFile(path,
                     "# edited\nschedule mine\nmicro_batches 2\nstages_on_ranks 0 1\n"
                     "rank 0: F0.0  F0.1 B0.0 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1\n");
  const auto asked = PlanFromArguments({"--stages=2", flag, "--accumulation=2"}, {.world_size = 2});
  ASSERT_THAT(asked, IsOk());
  EXPECT_EQ(asked->plan.schedule,
            "schedule mine\nmicro_batches 2\nstages_on_ranks 0 1\n"
            "rank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1\n");
  EXPECT_THAT(refusal({flag}), HasSubstr("1f1b where there is one stage"));
  testing::WriteFile(path, "schedule mine\nmicro_batches 0\n");
  EXPECT_EQ(
      refusal({"--stages=2", flag}),
      absl::StrCat(flag, ": line 2: micro_batches is followed by a whole number of at least 1"));
}

}  // namespace
}  // namespace muster
