// What a job of real processes computes does not depend on how many there are: to the bit in
// ordered mode, to 1e-5 in fast mode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::SizeIs;

constexpr int kMicroBatches = 4;

class TrainingBits : public JobTest {
 protected:
  // The last line that muster-train prints, for `ranks` that share a step of four micro-batches.
  std::string HashOf(int ranks, const Arguments& more = {}) {
    const SubprocessResult result =
        Start(Arguments{"run", absl::StrCat("--nproc_per_node=", ranks), MUSTER_TRAIN, "--data",
                        text_, "--mode=ordered", "--layers=2", "--heads=2", "--width=32",
                        "--context=24", "--batch-size=2", "--steps=6", "--sample_tokens=0",
                        absl::StrCat("--accumulation=", kMicroBatches / ranks), "--hash"} +
              more)
            .Wait(absl::Seconds(100));
    EXPECT_THAT(result, ExitsWith(0));
    const size_t at = result.out.rfind("hash=");
    if (at == std::string::npos) return "no hash in " + result.out;
    return result.out.substr(at, result.out.find('\n', at) - at);
  }

  // One loss per step, in fast mode.
  std::vector<double> LossesOf(int ranks, int steps) {
    const std::string directory = Out(absl::StrCat("ranks", ranks));
    std::filesystem::create_directory(directory);
    EXPECT_THAT(Start({"run", absl::StrCat("--nproc_per_node=", ranks), MUSTER_PARITY_PROBE,
                       directory, text_, absl::StrCat(steps), absl::StrCat(kMicroBatches)})
                    .Wait(absl::Seconds(100)),
                ExitsWith(0));
    std::vector<double> losses;
    for (absl::string_view line :
         absl::StrSplit(ReadFile(directory + "/losses.txt"), '\n', absl::SkipEmpty())) {
      losses.push_back(0);
      EXPECT_TRUE(absl::SimpleAtod(line, &losses.back()));
    }
    return losses;
  }

  const std::string text_ = absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/data/prose.txt");
};

TEST_F(TrainingBits, AreTheSameOnOneTwoAndFourRanksInOrderedMode) {
  const std::string one = HashOf(1);
  EXPECT_THAT(one, ContainsRegex("^hash=[0-9a-f]{64}$"));
  EXPECT_EQ(HashOf(2), one);
  EXPECT_EQ(HashOf(4), one);
}

TEST_F(TrainingBits, AreTheSameForEverySizeOfBucketsInOrderedMode) {
  const std::string expected = HashOf(1);
  EXPECT_EQ(HashOf(2, {"--bucket_mb=0.01"}), expected);
  EXPECT_EQ(HashOf(4, {"--bucket_mb=0.05"}), expected);
}

TEST_F(TrainingBits, AreTheSameUnderEveryPlanInOrderedMode) {
  const std::string expected = HashOf(1);
  for (const char* plan : {"zero1", "zero2", "zero3", "fsdp", "fsdp:shard_grad_op"}) {
    EXPECT_EQ(HashOf(2, {absl::StrCat("--plan=", plan)}), expected) << plan;
  }
  EXPECT_EQ(HashOf(4, {"--plan=hybrid_shard", "--shard_ranks=2"}), expected);
  EXPECT_EQ(HashOf(4, {"--plan=zero3", "--reshard_after_forward=2", "--max_reuse_distance=0",
                       "--persistence_threshold=0"}),
            expected);
}

TEST_F(TrainingBits, AreTheSameInAPipelineWhateverItsStagesAndBehindACheckpoint) {
  const std::string expected = HashOf(1);
  EXPECT_EQ(HashOf(2, {"--plan=1f1b", "--accumulation=4"}), expected);
  EXPECT_EQ(HashOf(4, {"--stages=2", "--accumulation=2"}), expected);
  EXPECT_EQ(HashOf(4, {"--plan=zero1", "--stages=2", "--accumulation=2"}), expected);
  HashOf(3,
         {"--plan=1f1b", "--accumulation=4", "--steps=3", absl::StrCat("--save=", Out("three"))});
  const std::string resume = absl::StrCat("--resume=", Out("three"));
  EXPECT_EQ(HashOf(4, {"--stages=2", "--accumulation=2", resume}), expected);
  EXPECT_EQ(HashOf(1, {resume}), expected);
}

TEST_F(TrainingBits, DifferBetweenSeeds) { EXPECT_NE(HashOf(1), HashOf(1, {"--seed=2"})); }

TEST_F(TrainingBits, StayWithinOneHundredThousandthOfOneProcessInFastMode) {
  constexpr int kSteps = 100;
  const std::vector<double> one = LossesOf(1, kSteps);
  ASSERT_THAT(one, SizeIs(kSteps));
  for (int ranks : {2, 4}) {
    const std::vector<double> losses = LossesOf(ranks, kSteps);
    ASSERT_THAT(losses, SizeIs(kSteps));
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(losses[step] / one[step], 1, 1e-5) << ranks << " ranks, step " << step;
    }
  }
}

}  // namespace
}  // namespace muster::testing
