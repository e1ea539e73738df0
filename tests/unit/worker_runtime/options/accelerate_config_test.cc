#include "worker_runtime/options/accelerate_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace muster::plan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

ConfigContents Read(const std::string& text) {
  const auto found = ReadAccelerateConfig({.name = "f", .text = text}, ConfigCompat::kStrict);
  EXPECT_TRUE(found.ok()) << text << ": " << found.status();
  return found.ok() ? found->contents : ConfigContents{};
}

TEST(ReadAccelerateConfig, KnowsKeysOfDeepSpeedThatAccelerateTakesAndDoesNotRead) {
  for (const char* key : {"communication_data_type", "dump_state", "gradient_predivide_factor",
                          "memory_breakdown", "prescale_gradients", "steps_per_print",
                          "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"}) {
    EXPECT_THAT(Read(absl::StrCat("distributed_type: DEEPSPEED\ndeepspeed_config: {", key, ": 1}"))
                    .without_effect,
                Contains(HasSubstr(absl::StrCat("f:2: deepspeed_config.", key, "=1: "))));
  }
}

// Source: accelerate 1.15 writes `tpu_env: []` into every file.
TEST(ReadAccelerateConfig, TakesAnEmptyListForABlockThatIsNotThere) {
  EXPECT_THAT(Read("distributed_type: MULTI_GPU\ntpu_env: []").without_effect,
              Contains(HasSubstr("f:2: tpu_env=[]: it is not enabled")));
}

TEST(ReadAccelerateConfig, TakesKeysOfBlocksWithoutTheirBeginning) {
  EXPECT_THAT(Read("distributed_type: MULTI_GPU\ndynamo_config: {backend: 'NO'}").without_effect,
              Contains(HasSubstr("f:2: dynamo_config.dynamo_backend=NO: ")));
}

}  // namespace
}  // namespace muster::plan
