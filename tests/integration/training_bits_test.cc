// What a job of real processes computes does not depend on how many there are: to the bit in
// ordered mode, to 1e-5 in fast mode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kMicroBatches = 4;

class TrainingBits : public JobTest {
 protected:
  // The last line that muster-train prints, for `ranks` that share a step of four micro-batches.
  std::string HashOf(int ranks, const Arguments& more = {}) {
    return HashBy(MusterTrainBinary(), ranks, more, {});
  }

  std::string HashBy(const std::string& trainer, int ranks, const Arguments& more,
                     const Environment& changes) {
    const SubprocessResult result =
        Start(Arguments{"run", absl::StrCat("--nproc_per_node=", ranks), trainer, "--data", text_,
                        "--mode=ordered", "--layers=2", "--heads=2", "--width=32", "--context=24",
                        "--batch-size=2", "--steps=6", "--sample_tokens=0",
                        absl::StrCat("--accumulation=", std::max(1, kMicroBatches / ranks)),
                        "--hash"} +
                  more,
              changes)
            .Wait(absl::Seconds(100));
    EXPECT_THAT(result, ExitsWith(0));
    const size_t at = result.out.rfind("hash=");
    if (at == std::string::npos) return "no hash in " + result.out;
    return result.out.substr(at, result.out.find('\n', at) - at);
  }

  SubprocessResult Train(const Arguments& more) {
    return Start(Arguments{"run", MusterTrainBinary(), "--data", text_, "--layers=2", "--heads=2",
                           "--width=32", "--context=24", "--batch-size=2"} +
                 more)
        .Wait(absl::Seconds(100));
  }

  // One loss per step, in fast mode.
  std::vector<double> LossesOf(int ranks, int steps) {
    const std::string directory = Out(absl::StrCat("ranks", ranks));
    std::filesystem::create_directory(directory);
    EXPECT_THAT(Start({"run", absl::StrCat("--nproc_per_node=", ranks), Built("parity_probe"),
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

  const std::string text_ = absl::StrCat(kSourceDirectory, "/tests/data/prose.txt");
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

// Where the gate runs this test it has a release train, whose code is another compiler run's.
TEST_F(TrainingBits, AreThoseOfTheBuildOfThisTestAtEachInstructionSet) {
  for (const char* isa : {"SSE41", "AVX2", "AVX512_CORE"}) {
    const Environment on = {{"ONEDNN_MAX_CPU_ISA", isa}};
    const std::string expected = HashBy(absl::StrCat(kBinaryDirectory, "/muster-train"), 1, {}, on);
    EXPECT_THAT(expected, ContainsRegex("^hash=[0-9a-f]{64}$"));
    const std::string trainer = MusterTrainBinary();
    EXPECT_EQ(HashBy(trainer, 2, {}, on), expected) << isa;
    EXPECT_EQ(HashBy(trainer, 2, {"--plan=zero-3"}, on), expected) << isa;
    EXPECT_EQ(HashBy(trainer, 2, {"--stages=2", "--accumulation=4"}, on), expected) << isa;
  }
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

TEST_F(TrainingBits, OfTensorRanksAreTheSameForAsManyWhateverTheRestOfTheMesh) {
  const std::string expected = HashOf(2, {"--mesh=tp=2", "--accumulation=4"});
  EXPECT_THAT(expected, ContainsRegex("^hash=[0-9a-f]{64}$"));
  EXPECT_NE(expected, HashOf(1));
  EXPECT_EQ(HashOf(4, {"--mesh=tp=2,dp=2", "--accumulation=2"}), expected);
  EXPECT_EQ(HashOf(4, {"--plan=zero-3", "--mesh=tp=2", "--accumulation=2"}), expected);
  EXPECT_EQ(HashOf(4, {"--mesh=tp=2,pp=2", "--accumulation=4"}), expected);
}

// Half of the steps by eight ranks in three dimensions; what they have saved goes on as any mesh.
TEST_F(TrainingBits, OfTensorRanksGoOnBehindACheckpointOfThreeDimensions) {
  const Arguments half = {"--mesh=pp=2,dp=2,tp=2", "--accumulation=2", "--steps=3"};
  const std::string saved = HashOf(8, half + Arguments{absl::StrCat("--save=", Out("three"))});
  EXPECT_THAT(saved, ContainsRegex("^hash=[0-9a-f]{64}$"));
  const std::string resume = absl::StrCat("--resume=", Out("three"));
  EXPECT_EQ(HashOf(2, {"--mesh=tp=2", "--accumulation=4", resume}),
            HashOf(2, {"--mesh=tp=2", "--accumulation=4"}));
  const std::string as_one = HashOf(1, {resume});
  EXPECT_EQ(HashOf(4, {"--stages=4", "--accumulation=4", resume}), as_one);
  EXPECT_EQ(HashOf(4, {resume}), as_one);
}

TEST_F(TrainingBits, AreTheSameInEveryScheduleOfStagesAndBehindTheCheckpointOfAnother) {
  const std::string expected = HashOf(1);
  const Arguments two = {"--stages=2", "--accumulation=4"};
  for (const char* schedule : {"gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"}) {
    const std::string flag = absl::StrCat("--stage_schedule=", schedule);
    EXPECT_EQ(HashOf(2, two + Arguments{flag}), expected) << schedule;
    EXPECT_EQ(HashOf(4, {"--plan=fsdp", "--stages=2", "--accumulation=2", flag}), expected)
        << schedule;
  }
  WriteFile(Out("mine"),
            "schedule mine\nmicro_batches 4\nstages_on_ranks 0 1\n"
            "rank 0: F0.0 F0.1 B0.0 B0.1 F0.2 F0.3 B0.2 B0.3\n"
            "rank 1: F1.0 F1.1 B1.0 B1.1 F1.2 F1.3 B1.2 B1.3\n");
  EXPECT_EQ(HashOf(2, two + Arguments{absl::StrCat("--stage_schedule=", Out("mine"))}), expected);
  WriteFile(
      Out("unequal"),
      "schedule unequal\nmicro_batches 4\nstages_on_ranks 0 1 0\n"
      "rank 0: F0.0 F0.1 F2.0 B2.0 F0.2 F2.1 B2.1 B0.0 F0.3 F2.2 B2.2 B0.1 F2.3 B2.3 B0.2 B0.3\n"
      "rank 1: F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3\n");
  const std::string unequal = absl::StrCat("--stage_schedule=", Out("unequal"));
  EXPECT_EQ(HashOf(2, two + Arguments{unequal}), expected);
  HashOf(2, two + Arguments{"--stage_schedule=interleaved", "--steps=3",
                            absl::StrCat("--save=", Out("turns"))});
  const std::string resume = absl::StrCat("--resume=", Out("turns"));
  EXPECT_EQ(HashOf(2, two + Arguments{"--stage_schedule=zb-h1", resume}), expected);
  EXPECT_EQ(HashOf(1, {resume}), expected);
}

TEST_F(TrainingBits, AreTheSameWhereverFrozenParametersLie) {
  const std::string one = HashOf(1, {"--freeze", "h.*"});
  EXPECT_THAT(one, ContainsRegex("^hash=[0-9a-f]{64}$"));
  EXPECT_NE(one, HashOf(1));
  for (const char* plan : {"--plan=zero2", "--plan=fsdp"}) {
    EXPECT_EQ(HashOf(2, {plan, "--freeze", "h.*"}), one) << plan;
  }
  EXPECT_EQ(HashOf(2, {"--stages=2", "--accumulation=4", "--freeze", "h.*"}), one);
}

TEST_F(TrainingBits, OfAdaptersAreTheSameUnderEveryPlan) {
  const std::string adapters = "--lora=3:h.*.c_*.weight";
  const std::string one = HashOf(1, {adapters});
  EXPECT_THAT(one, ContainsRegex("^hash=[0-9a-f]{64}$"));
  EXPECT_NE(one, HashOf(1));
  for (const char* plan : {"zero1", "zero2", "zero3", "fsdp", "fsdp:shard_grad_op"}) {
    EXPECT_EQ(HashOf(2, {absl::StrCat("--plan=", plan), adapters}), one) << plan;
  }
  EXPECT_EQ(HashOf(2, {"--stages=2", "--accumulation=4", adapters}), one);
}

TEST_F(TrainingBits, OfAdaptersOfF32OverAModelIn16BitsAreTheSameUnderEveryPlan) {
  const Arguments narrow = {"--lora=3:h.*.c_*.weight", "--dtype=bf16"};
  const Arguments wide = narrow + Arguments{"--lora_dtype=f32"};
  const std::string one = HashOf(1, wide);
  EXPECT_THAT(one, ContainsRegex("^hash=[0-9a-f]{64}$"));
  EXPECT_NE(one, HashOf(1, narrow));
  for (const char* plan : {"zero2", "fsdp"}) {
    EXPECT_EQ(HashOf(2, wide + Arguments{absl::StrCat("--plan=", plan)}), one) << plan;
  }
  EXPECT_EQ(HashOf(2, wide + Arguments{"--stages=2", "--accumulation=4"}), one);
}

// The base has the moments of a training of its own, the adapters theirs.
TEST_F(TrainingBits, OfAdaptersGoOnUnderAnotherPlanFromACheckpointOfThemAlone) {
  const std::string base = Out("base");
  const std::string saved = Out("adapters");
  HashOf(1, {"--steps=2", absl::StrCat("--save=", base)});
  const Arguments adapters = {"--lora=2", absl::StrCat("--base=", base)};
  const std::string whole = HashOf(1, adapters);
  HashOf(2, adapters + Arguments{"--plan=fsdp", "--steps=3", absl::StrCat("--save=", saved)});
  const std::string resume = absl::StrCat("--resume=", saved);
  EXPECT_EQ(HashOf(1, adapters + Arguments{resume}), whole);
  EXPECT_EQ(HashOf(2, adapters + Arguments{"--plan=zero2", resume}), whole);
  const auto size = [](const std::string& checkpoint) {
    uintmax_t bytes = 0;
    for (const std::string& file : FilesBelow(checkpoint)) {
      if (file != "training.json") bytes += std::filesystem::file_size(checkpoint + "/" + file);
    }
    return bytes;
  };
  EXPECT_LT(20 * size(saved + "/step_00000003"), size(base + "/step_00000002"));
  const SubprocessResult other = Train(Arguments{"--lora=2", "--seed=5", resume, "--steps=6"});
  EXPECT_THAT(other, ExitsWith(2));
  EXPECT_THAT(other.err, HasSubstr("holds adapters of another model"));
}

TEST_F(TrainingBits, OfAdaptersAreNotTrainedBesideWhatIsNoMatrix) {
  const SubprocessResult none = Train({"--lora=2:h.9.*", "--steps=1"});
  EXPECT_THAT(none, ExitsWith(2));
  EXPECT_THAT(none.err, HasSubstr("adapters beside 'h.9.*': it fits no parameter of the model"));
  const SubprocessResult vector = Train({"--lora=2:*.bias", "--steps=1"});
  EXPECT_THAT(vector, ExitsWith(2));
  EXPECT_THAT(vector.err, HasSubstr(".bias, which is not a matrix"));
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
