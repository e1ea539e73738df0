// The same weights and batches through this runtime and through PyTorch, DeepSpeed, PEFT and
// Accelerate, whose losses are recorded (support/peer_record.h). New initial values, batches or
// files of theirs are recorded anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"
#include "tests/support/peer_record.h"

namespace muster::testing {
namespace {

using ::testing::SizeIs;
using Losses = std::vector<double>;  // one per step

constexpr absl::Duration kPatience = absl::Seconds(250);
constexpr int kSteps = 10;
constexpr int kMicroBatches = 4;

std::string Program(const std::string& name) {
  return absl::StrCat(kSourceDirectory, "/tests/integration/programs/", name);
}

// Those of lines that are `before` and a number, beside what else is printed.
Losses LossesIn(const std::string& printed, absl::string_view before) {
  Losses losses;
  for (absl::string_view line : absl::StrSplit(printed, '\n', absl::SkipEmpty())) {
    double loss = 0;
    if (absl::ConsumePrefix(&line, before) && absl::SimpleAtod(line, &loss)) losses.push_back(loss);
  }
  return losses;
}

class Parity : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    std::filesystem::create_directories(directory_ + "/home/.config/instructlab");
  }

  // Expects losses as near to each other in each step as `tolerance`, and falling. `rest`: what the
  // probe is asked for; `command`: what Python then runs.
  void ExpectSameLosses(int num_ranks, const Arguments& rest, const std::string& package,
                        const Arguments& command, double tolerance) const {
    const Losses ours = Ours(num_ranks, rest);
    const Losses theirs = Theirs(package, command, tolerance);
    ASSERT_THAT(ours, SizeIs(kSteps));
    ASSERT_THAT(theirs, SizeIs(kSteps));
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(ours[step] / theirs[step], 1, tolerance) << "step " << step;
    }
    EXPECT_LT(ours.back(), ours.front());
  }

  const std::string directory_ = Out("parity");

 private:
  Losses Ours(int num_ranks, const Arguments& rest) const {
    const Arguments command = {"run",
                               absl::StrCat("--nproc_per_node=", num_ranks),
                               Built("parity_probe"),
                               directory_,
                               absl::StrCat(kSourceDirectory, "/tests/data/prose.txt"),
                               absl::StrCat(kSteps)};
    const SubprocessResult result =
        Start(command + rest, {{"GLOO_SOCKET_IFNAME", "lo"}, {"HOME", directory_ + "/home"}})
            .Wait(kPatience);
    EXPECT_THAT(result, ExitsWith(0));
    return LossesIn(ReadFile(directory_ + "/losses.txt"), "");
  }

  // A processor with other instructions rounds otherwise.
  Losses Theirs(const std::string& package, const Arguments& command, double tolerance) const {
    const auto by_peer = [&]() -> nlohmann::json {
      // The programs lie in the source, where nothing is to be written.
      const SubprocessResult result =
          StartProgram(Arguments{PeerPython()} + command, {{"PYTHONDONTWRITEBYTECODE", "1"}})
              .Wait(kPatience);
      if (!HasSucceeded(result)) return {};
      return LossesIn(result.out, "loss ");
    };
    const nlohmann::json losses = PeerRecord(package, package).Outcome("", by_peer, tolerance);
    return losses.is_null() ? Losses() : losses.get<Losses>();
  }
};

class TrainingParity : public Parity, public ::testing::WithParamInterface<int> {};

TEST_P(TrainingParity, HasTheLossesOfPyTorchForTenSteps) {
  ExpectSameLosses(
      GetParam(), {absl::StrCat(kMicroBatches)}, "torch",
      {Program("parity_torch.py"), directory_, absl::StrCat(kSteps), absl::StrCat(kMicroBatches)},
      1e-5);
}

// Parameters of 16 bits over masters and gradients of f32, beside FSDP2 with the same. Rounding
// differs (PyTorch's attention keeps other numbers), so a loss is as near as a few units of bf16's
// last digit.
class NarrowParity : public Parity, public ::testing::WithParamInterface<const char*> {};

TEST_P(NarrowParity, HasTheLossesOfFsdp2ForTenSteps) {
  ExpectSameLosses(2, {absl::StrCat(kMicroBatches), GetParam()}, "torch",
                   {Program("parity_fsdp.py"), directory_, absl::StrCat(kSteps),
                    absl::StrCat(kMicroBatches), GetParam()},
                   2e-3);
}

struct ModelFamily {
  const char* name;   // of parity_transformers.py
  const char* model;  // whose parts are trained in small sizes
  Arguments more;
};

class TransformersParity : public Parity, public ::testing::WithParamInterface<ModelFamily> {};

TEST_P(TransformersParity, HasTheLossesOfTransformersForTenSteps) {
  const ModelFamily& family = GetParam();
  const Arguments ours = {absl::StrCat("--model=", family.model),
                          "--num_layers=2",
                          "--num_heads=4",
                          "--kv_heads=2",
                          "--hidden_size=64",
                          "--mlp_size=96",
                          "--batch_size=3",
                          "--accumulation=2",
                          "--lr=1e-3"};
  ExpectSameLosses(2, ours + family.more, "transformers",
                   {Program("parity_transformers.py"), directory_, absl::StrCat(kSteps), "4",
                    "1e-3", family.name},
                   1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Families, TransformersParity,
    ::testing::Values(ModelFamily{"llama", "llama-3.2-1b", {}},
                      ModelFamily{"qwen2", "qwen2.5-7b", {"--plan=zero-3"}},
                      ModelFamily{"qwen3", "qwen3-0.6b", {"--head_size=32", "--recompute=full"}},
                      ModelFamily{"granite", "granite-3.0-2b-base", {"--plan=zero-2"}}),
    [](const auto& info) { return info.param.name; });

std::string ConfigFile(const std::string& name) {
  return absl::StrCat(kSourceDirectory, "/tests/unit/worker_runtime/options/configs/", name);
}

// Its GPT is parity_gpt.py's, whose layers PEFT wraps.
TEST_F(Parity, HasTheLossesOfPeftForAdaptersOfLowRank) {
  ExpectSameLosses(2,
                   {"--lora=4:h.*.c_*.weight", "--plan=zero-2", "--batch_size=3",
                    "--accumulation=2", "--lr=1e-2"},
                   "peft",
                   {Program("parity_peft.py"), directory_, absl::StrCat(kSteps), "4", "4", "1e-2"},
                   1e-5);
}

TEST_F(Parity, HasTheLossesOfPeftForAdaptersOfF32OverAModelInBf16) {
  ExpectSameLosses(
      2,
      {"--lora=4:h.*.c_*.weight", "--dtype=bf16", "--lora_dtype=f32", "--plan=zero-2",
       "--batch_size=3", "--accumulation=2", "--lr=1e-2"},
      "peft",
      {Program("parity_peft.py"), directory_, absl::StrCat(kSteps), "4", "4", "1e-2", "bf16"},
      2e-3);
}

struct DeepSpeedFile {
  const char* name;
  const char* dtype;  // f32 on both sides, or the file's own
  double tolerance;
};

std::string NameOf(const DeepSpeedFile& file) {
  const std::string name = file.name;
  return absl::StrCat(name.substr(0, name.find('.')), "_", file.dtype);
}

class DeepSpeedParity : public Parity, public ::testing::WithParamInterface<DeepSpeedFile> {
 protected:
  void SetUp() override {
    Parity::SetUp();
    if (GetParam().dtype == std::string("f16") && !HasF16()) {
      GTEST_SKIP() << "DeepSpeed takes f16 only on processors with AVX512-FP16: what it does there "
                      "is not recorded, or cannot be seen here";
    }
  }

 private:
  bool HasF16() const {
    const PeerSource source = PeersComeFrom();
    const bool is_recorded = PeerRecord("deepspeed", "deepspeed").HasOutcome("");
    if (source == PeerSource::kRecord) return is_recorded;
    constexpr char kAsk[] =
        "import sys, torch; sys.exit(not torch.ops.mkldnn._is_mkldnn_fp16_supported())";
    return (is_recorded || source == PeerSource::kRecording) &&
           StartProgram({PeerPython(), "-c", kAsk}).Wait(kPatience).exit_code == 0;
  }
};

// A file without an optimizer means the program's own.
TEST_P(DeepSpeedParity, HasTheLossesOfDeepSpeedForTheSameFile) {
  const std::string dtype = GetParam().dtype;
  std::string text = ReadFile(ConfigFile(GetParam().name));
  if (dtype == "bf16") text = absl::StrReplaceAll(text, {{"\"fp16\"", "\"bf16\""}});
  const std::string file = directory_ + "/ds.json";
  WriteFile(file, text);
  Arguments options = {absl::StrCat("--deepspeed=", file)};
  if (dtype == "f32") options.push_back("--dtype=f32");
  if (!absl::StrContains(text, "train_batch_size")) options.push_back("--batch_size=3");
  if (!absl::StrContains(text, "\"optimizer\"")) options.push_back("--lr=1e-3");
  ExpectSameLosses(2, options, "deepspeed",
                   {Program("parity_deepspeed.py"), directory_, absl::StrCat(kSteps), file, "2",
                    dtype == "f32" ? "f32" : "own"},
                   GetParam().tolerance);
}

// Its trainer needs GPUs, so DeepSpeed itself with the file that InstructLab's names is the peer.
TEST_F(Parity, HasTheLossesOfDeepSpeedForInstructLabsFile) {
  const std::string deepspeed = ConfigFile("ds_full_stage3_offload.json");
  std::filesystem::copy_file(deepspeed, directory_ + "/home/.config/instructlab/ds_config.json");
  ExpectSameLosses(
      2,
      {absl::StrCat("--ilab=", ConfigFile("instructlab.yaml")), "--dtype=f32", "--device=cpu",
       "--batch_size=16", "--num_layers=2", "--num_heads=4", "--hidden_size=64",
       "--sequence_length=32"},
      "deepspeed",
      {Program("parity_deepspeed.py"), directory_, absl::StrCat(kSteps), deepspeed, "2", "f32"},
      1e-5);
}

class AccelerateParity : public Parity, public ::testing::WithParamInterface<const char*> {};

// accelerate_fsdp.yaml has no peer here: on the host Accelerate wraps in DDP whatever it says.
TEST_P(AccelerateParity, HasTheLossesOfAccelerateForTheSameFile) {
  const std::string file = ConfigFile(absl::StrCat("accelerate_", GetParam(), ".yaml"));
  ExpectSameLosses(2,
                   {absl::StrCat("--accelerate=", file), "--device=cpu", "--dtype=f32", "--lr=1e-3",
                    "--batch_size=3"},
                   "accelerate",
                   {"-m", "accelerate.commands.launch", "--config_file", file, "--num_processes",
                    "2", "--mixed_precision", "no", "--main_process_port", "0",
                    Program("parity_accelerate.py"), directory_, absl::StrCat(kSteps)},
                   1e-5);
}

INSTANTIATE_TEST_SUITE_P(Files, DeepSpeedParity,
                         ::testing::Values(DeepSpeedFile{"ds_full_stage2.json", "f32", 1e-5},
                                           DeepSpeedFile{"ds_stage3_offload.json", "f32", 1e-5},
                                           DeepSpeedFile{"ds_stage1.json", "f32", 1e-5},
                                           DeepSpeedFile{"ds_stage2.json", "f32", 1e-5},
                                           DeepSpeedFile{"ds_minimal_stage2.json", "f32", 1e-5},
                                           DeepSpeedFile{"ds_full_stage3_offload.json", "f16",
                                                         1e-3},
                                           DeepSpeedFile{"ds_minimal_stage2.json", "f16", 1e-3},
                                           DeepSpeedFile{"ds_minimal_stage2.json", "bf16", 3e-3}),
                         [](const auto& file) { return NameOf(file.param); });

INSTANTIATE_TEST_SUITE_P(Files, AccelerateParity, ::testing::Values("multi_gpu", "deepspeed"),
                         [](const auto& file) { return std::string(file.param); });

INSTANTIATE_TEST_SUITE_P(Types, NarrowParity, ::testing::Values("bf16", "f16", "f16-torch"),
                         [](const auto& type) {
                           return absl::StrReplaceAll(type.param, {{"-", "_"}});
                         });

INSTANTIATE_TEST_SUITE_P(Ranks, TrainingParity, ::testing::Values(1, 2, 4),
                         [](const auto& ranks) { return absl::StrCat(ranks.param); });

}  // namespace
}  // namespace muster::testing
