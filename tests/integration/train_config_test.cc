// muster-train with the configuration files that people have: three steps of a tiny GPT on the
// host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct SeedFile {
  const char* name;
  const char* option;
  int ranks;
  const char* overruled;  // by an option or the job; empty: nothing is
};

void PrintTo(const SeedFile& file, std::ostream* out) { *out << file.name; }

class TrainConfig : public JobTest, public ::testing::WithParamInterface<SeedFile> {};

TEST_P(TrainConfig, TrainsThreeStepsAndNamesWhatIsOverruled) {
  const std::string configs =
      absl::StrCat(kSourceDirectory, "/tests/unit/worker_runtime/options/configs/");
  const std::string home = Out("home");
  std::filesystem::create_directories(home + "/.config/instructlab");
  std::filesystem::copy_file(configs + "ds_full_stage3_offload.json",
                             home + "/.config/instructlab/ds_config.json");
  const SubprocessResult result =
      Start({"run", absl::StrCat("--nproc_per_node=", GetParam().ranks), MusterTrainBinary(),
             absl::StrCat(GetParam().option, "=", configs, GetParam().name), "--device=cpu",
             "--num_layers=1", "--num_heads=2", "--hidden_size=16", "--sequence_length=16",
             "--steps=3", "--log_every=1", "--sample_tokens=0"},
            {{"HOME", home}, {"GLOO_SOCKET_IFNAME", "lo"}})
          .Wait();
  ASSERT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, AllOf(HasSubstr("step 1/3  loss"), HasSubstr("step 3/3  loss")));
  if (*GetParam().overruled == '\0') {
    EXPECT_THAT(result.err, Not(ContainsRegex("overruled|change nothing")));
  } else {
    EXPECT_THAT(result.err, HasSubstr(GetParam().overruled));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, TrainConfig,
    ::testing::Values(
        SeedFile{"ds_full_stage2.json", "--deepspeed", 2, "keys that change nothing here"},
        SeedFile{"ds_full_stage3_offload.json", "--deepspeed", 2, "offload_param.pin_memory"},
        SeedFile{"ds_minimal_stage2.json", "--deepspeed", 2, ""},
        SeedFile{"ds_stage1.json", "--deepspeed", 2, ""},
        SeedFile{"ds_stage2.json", "--deepspeed", 2, "zero_optimization.reduce_scatter"},
        SeedFile{"ds_stage3_offload.json", "--deepspeed", 2, "zero_optimization.sub_group_size"},
        SeedFile{"accelerate_deepspeed.yaml", "--accelerate", 2,
                 ".yaml:10: num_processes=8 is overruled by the job, whose world_size is 2"},
        SeedFile{"accelerate_fsdp.yaml", "--accelerate", 2,
                 ".yaml:2: distributed_type=FSDP is overruled by --device=cpu"},
        SeedFile{"accelerate_multi_gpu.yaml", "--accelerate", 2,
                 ".yaml:6: use_cpu=false is overruled by --device=cpu"},
        SeedFile{"instructlab.yaml", "--ilab", 4,
                 ".yaml:19: train.model.base=granite-7b-base is overruled by --num_layers=1, "
                 "--num_heads=2 and --hidden_size=16"}));

}  // namespace
}  // namespace muster::testing
