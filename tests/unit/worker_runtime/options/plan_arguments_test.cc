#include "muster/plan_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

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

TEST(PlanFromArguments, TakesTheDirectoryOfAModelInPlaceOfAName) {
  const testing::TemporaryDirectory directory;
  const std::string flag = absl::StrCat("--model=", directory.path());
  EXPECT_THAT(PlanFromArguments({flag}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("is not a known model; expected gpt2-124m"),
                             HasSubstr("or the directory of one, with its config.json"))));
  const std::string config =
      R"({"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 256,
          "num_attention_heads": 4, "intermediate_size": 24, "max_position_embeddings": 4096})";
  testing::WriteFile(directory.File("config.json"), "\n" + config);
  const auto asked = PlanFromArguments({flag}, {});
  ASSERT_THAT(asked, IsOk());
  EXPECT_EQ(asked->model_files, directory.path());
  EXPECT_EQ(asked->model.hidden_size, 16);
  EXPECT_EQ(asked->model.context, 1024) << "more only if it is asked for";
  EXPECT_EQ(PlanFromArguments({flag, "--context=4096"}, {})->model.context, 4096);
  EXPECT_THAT(PlanFromArguments({flag, "--context=4097"}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 4096")));
  EXPECT_EQ(PlanFromArguments({"--model=gpt2-124m"}, {})->model_files, "");

  const std::string known = directory.File("Llama-3.2-1B");
  ASSERT_EQ(mkdir(known.c_str(), 0700), 0);
  EXPECT_EQ(PlanFromArguments({absl::StrCat("--model=", known)}, {})->model.layers, 16);
  testing::WriteFile(known + "/config.json", config);
  EXPECT_EQ(PlanFromArguments({absl::StrCat("--model=", known)}, {})->model_files, known)
      << "who has the weights wants them";

  const std::string ilab = directory.File("ilab.yaml");
  testing::WriteFile(ilab, absl::StrCat("train:\n  model:\n    base: ", directory.path(), "\n"));
  const auto named = PlanFromArguments({absl::StrCat("--ilab=", ilab)}, {});
  ASSERT_THAT(named, IsOk());
  EXPECT_EQ(named->model_files, directory.path());

  testing::WriteFile(directory.File("config.json"), "{\"model_type\": \"mamba\"}");
  EXPECT_THAT(PlanFromArguments({flag}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(directory.File("config.json") + ":1: model_type=mamba")));
}

TEST(PlanFromArguments, LaysRanksOverAMesh) {
  const PlanRanks ranks = {.world_size = 16, .of_node = 8};
  const auto asked =
      PlanFromArguments({"--plan=zero-3", "--mesh=pp=2,dp=2,shard=4", "--batch_size=1"}, ranks);
  ASSERT_THAT(asked, IsOk());
  EXPECT_EQ(asked->plan.stages, 2);
  EXPECT_EQ(asked->plan.shard_ranks, 4);
  EXPECT_THAT(PlanFromArguments({"--plan=zero-3", "--mesh=pp=2,dp=3,shard=4"}, ranks),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--mesh: dp is 3, and 16 ranks lie over pp=2 x dp=2 x shard=4")));
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
