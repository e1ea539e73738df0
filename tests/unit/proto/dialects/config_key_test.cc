// The tables of keys, and what readers ask of them.
//
// Sources: proto/dialects/accelerate.h, proto/dialects/config_key.h, proto/dialects/deepspeed.h,
//          proto/dialects/instructlab.h.
#include "proto/dialects/config_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "proto/dialects/accelerate.h"
#include "proto/dialects/deepspeed.h"
#include "proto/dialects/instructlab.h"
#include "tests/support/status_matchers.h"

namespace muster {
namespace {

using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsNull;
using ::testing::NotNull;

using Use = TrainingUse::Use;

const ConfigKey kKeys[] = {
    {"train", ConfigKey::Type::kAny, TrainingUse::Section()},
    {"train.num_gpus", ConfigKey::Type::kWhole, {}, LaunchUse::Option("nproc_per_node")},
    {"train.more", ConfigKey::Type::kAny, TrainingUse::Disabled("not here")},
    {"some_config", ConfigKey::Type::kAny, TrainingUse::Section()},
    {"some_config.some_stage", ConfigKey::Type::kWhole},
};

void CheckTable(absl::Span<const ConfigKey> keys) {
  std::set<std::string> paths;
  std::set<std::string> variables;
  for (const ConfigKey& row : keys) {
    const std::string path = row.path;
    EXPECT_TRUE(paths.insert(path).second) << path << " has two rows";
    const size_t dot = path.rfind('.');
    const ConfigKey* const found = FindKey(keys, path.substr(0, dot + 1), path.substr(dot + 1));
    ASSERT_THAT(found, NotNull()) << path;
    EXPECT_EQ(found->path, path);
    if (dot != std::string::npos) {
      EXPECT_TRUE(paths.contains(path.substr(0, dot))) << path << " comes before its map";
    }
    const TrainingUse& training = row.training;
    EXPECT_EQ(*training.word != '\0', training.use == Use::kOption || training.use == Use::kOnly)
        << path;
    const bool needs_reason = training.use == Use::kWithoutEffect || training.use == Use::kOnly ||
                              training.use == Use::kDisabled;
    EXPECT_EQ(*training.why != '\0', needs_reason) << path;
    if (row.launch.use == LaunchUse::Use::kIgnored) {
      EXPECT_EQ(training.use, Use::kWithoutEffect) << path;
    }
    if (row.launch.use != LaunchUse::Use::kVariable) continue;
    EXPECT_TRUE(variables.insert(row.launch.word).second) << row.launch.word << " has two keys";
  }
}

TEST(Tables, HaveOneRowForAKeyWithAReasonWhereItChangesNothing) {
  CheckTable(AccelerateKeys());
  CheckTable(DeepSpeedKeys());
  CheckTable(InstructLabKeys());
}

TEST(AccelerateKey, CompletesWhatLacksTheBeginningOfItsBlock) {
  EXPECT_EQ(AccelerateKey("fsdp_config", "sharding_strategy"), "fsdp_sharding_strategy");
  EXPECT_EQ(AccelerateKey("fsdp_config", "fsdp_version"), "fsdp_version");
  EXPECT_EQ(AccelerateKey("dynamo_config", "backend"), "dynamo_backend");
  EXPECT_EQ(AccelerateKey("deepspeed_config", "config_file"), "config_file");
  EXPECT_EQ(AccelerateKey("fsdp_config", "shard"), "shard");
}

TEST(AccelerateKind, IsOneThatCanBeStartedOrSaysWhyNot) {
  EXPECT_THAT(AccelerateKind("False"), IsOkAndHolds("NO"));
  EXPECT_THAT(AccelerateKind("FSDP"), IsOkAndHolds("FSDP"));
  EXPECT_THAT(AccelerateKind("TPU"), StatusIs(absl::StatusCode::kInvalidArgument, kNoTpus));
  EXPECT_THAT(AccelerateKind("FSPD"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean FSDP?")));
}

TEST(FindKey, GivesTheRowOfAKeyOrOfTheMapThatIsTakenAsAWhole) {
  EXPECT_EQ(FindKey(kKeys, "train.", "num_gpus"), &kKeys[1]);
  EXPECT_EQ(FindKey(kKeys, "train.more.of.", "it"), &kKeys[2]);
  EXPECT_THAT(FindKey(kKeys, "train.", "num"), IsNull());
  EXPECT_THAT(FindKey(kKeys, "train.num_gpus.", "x"), IsNull());
  EXPECT_THAT(FindKey(kKeys, "", "train.num_gpus"), IsNull());
}

TEST(KeyHint, NamesTheNearestKeyOfTheMapOrWhereTheKeyIsRight) {
  EXPECT_EQ(KeyHint(kKeys, "train.", "num_gpu"), "; did you mean num_gpus?");
  EXPECT_EQ(KeyHint(kKeys, "", "num_gpus"), "; did you mean train.num_gpus?");
  EXPECT_EQ(KeyHint(kKeys, "some_config.", "stagee"), "; did you mean some_stage?");
  EXPECT_EQ(KeyHint(kKeys, "train.", "completely_else"), "");
}

TEST(UnknownKey, SaysInWhichMap) {
  EXPECT_EQ(UnknownKey(kKeys, "train.", "num_gpu"),
            "unknown key 'num_gpu' in train; did you mean num_gpus?");
  EXPECT_EQ(UnknownKey(kKeys, "", "nothing_like_it"), "unknown key 'nothing_like_it'");
}

TEST(MixedPrecision, ReadsWhatBothFilesCallTypes) {
  EXPECT_THAT(MixedPrecision("False"), IsOkAndHolds("no"));
  EXPECT_THAT(MixedPrecision("BF16"), IsOkAndHolds("bf16"));
  EXPECT_THAT(MixedPrecision("fp8"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use bf16")));
  EXPECT_THAT(MixedPrecision("bf61"),
              StatusIs(absl::StatusCode::kInvalidArgument, "expected no, fp16 or bf16"));
}

}  // namespace
}  // namespace muster
