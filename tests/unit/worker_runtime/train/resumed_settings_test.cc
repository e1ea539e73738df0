#include "worker_runtime/train/resumed_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::train {
namespace {

const Settings kSaved = {{"seed", "1"},
                         {"update.beta2", "0.95"},
                         {"learning_rate.peak", "3e-04"},
                         {"preset", "ddp"},
                         {"accumulation", "4"},
                         {"micro_batches", "8"},
                         {"data", "1 file, 3 bytes of text"},
                         {"data_sha256", "0123456789abcdef"}};

Settings With(const std::string& name, const std::string& value) {
  Settings settings = kSaved;
  settings[name] = value;
  return settings;
}

TEST(DescribeChanges, IsEmptyWhereNothingDiffers) {
  EXPECT_EQ(DescribeChanges(kSaved, kSaved), "");
}

TEST(DescribeChanges, NamesSeedRuleAndRateWithBothValues) {
  EXPECT_EQ(DescribeChanges(kSaved, With("seed", "2")), "seed is 2 and was 1");
  EXPECT_EQ(DescribeChanges(kSaved, With("update.beta2", "0.999")),
            "update.beta2 is 0.999 and was 0.95");
  Settings both = With("learning_rate.peak", "1e-04");
  both["seed"] = "7";
  EXPECT_EQ(DescribeChanges(kSaved, both),
            "learning_rate.peak is 1e-04 and was 3e-04; seed is 7 and was 1");
}

TEST(DescribeChanges, PassesWhatOnlyDecidesWhereArraysLie) {
  EXPECT_EQ(DescribeChanges(kSaved, With("preset", "zero-3")), "");
  EXPECT_EQ(DescribeChanges(kSaved, With("accumulation", "1")), "") << "of other ranks";
}

TEST(DescribeChanges, TellsOtherDataOfTheSameLengthByTheirHash) {
  EXPECT_EQ(DescribeChanges(kSaved, With("data_sha256", "fedcba9876543210")),
            "data holds other tokens than before (SHA-256 fedcba98 and was 01234567)");
  Settings longer = With("data_sha256", "fedcba9876543210");
  longer["data"] = "2 files, 9 bytes of text";
  EXPECT_EQ(DescribeChanges(kSaved, longer),
            "data is 2 files, 9 bytes of text and was 1 file, 3 bytes of text");
}

TEST(DescribeChanges, PassesWhatAnOlderCheckpointDoesNotSay) {
  EXPECT_EQ(DescribeChanges({}, kSaved), "");
}

}  // namespace
}  // namespace muster::train
