// The same weights and batches through this runtime and through PyTorch. Skipped where PyTorch is
// not installed (`deploy/dev deps --peers`).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::SizeIs;

constexpr char kPython[] = "/usr/bin/python3";
constexpr absl::Duration kPatience = absl::Seconds(250);
constexpr int kSteps = 10;
constexpr int kMicroBatches = 4;

// The programs lie in the source, where nothing is to be written.
const Environment kNoBytecode = {{"PYTHONDONTWRITEBYTECODE", "1"}};

std::string Program(const std::string& name) {
  return absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/integration/programs/", name);
}

std::vector<double> Numbers(const std::string& text) {
  std::vector<double> numbers;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    double number = 0;
    if (absl::SimpleAtod(line, &number)) numbers.push_back(number);
  }
  return numbers;
}

// A number per step in each, as near to each other as `tolerance`, and falling.
void ExpectSameLosses(const std::string& ours, const std::string& theirs, double tolerance) {
  const std::vector<double> losses = Numbers(ours);
  const std::vector<double> torch_losses = Numbers(theirs);
  ASSERT_THAT(losses, SizeIs(kSteps));
  ASSERT_THAT(torch_losses, SizeIs(kSteps));
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(losses[step] / torch_losses[step], 1, tolerance) << "step " << step;
  }
  EXPECT_LT(losses.back(), losses.front());
}

// The lines "loss 5.51", beside what else a peer prints.
std::string LossesIn(const std::string& printed) {
  std::string losses;
  for (absl::string_view line : absl::StrSplit(printed, '\n')) {
    if (absl::ConsumePrefix(&line, "loss ")) absl::StrAppend(&losses, line, "\n");
  }
  return losses;
}

class TrainingParity : public JobTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    Subprocess import = StartProgram({kPython, "-c", "import torch, numpy"});
    if (import.Wait(kPatience).exit_code != 0) GTEST_SKIP() << kPython << " cannot import torch";
  }
};

TEST_P(TrainingParity, HasTheLossesOfPyTorchForTenSteps) {
  const std::string directory = Out("parity");
  std::filesystem::create_directory(directory);
  const std::string text = absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/data/prose.txt");
  const SubprocessResult ours =
      Start({"run", absl::StrCat("--nproc_per_node=", GetParam()), MUSTER_PARITY_PROBE, directory,
             text, absl::StrCat(kSteps), absl::StrCat(kMicroBatches)},
            {{"GLOO_SOCKET_IFNAME", "lo"}})
          .Wait(kPatience);
  ASSERT_THAT(ours, ExitsWith(0));
  const SubprocessResult theirs = PeersOutcome([&] {
    return StartProgram({kPython, Program("parity_torch.py"), directory, absl::StrCat(kSteps),
                         absl::StrCat(kMicroBatches)},
                        kNoBytecode)
        .Wait(kPatience);
  });
  ASSERT_THAT(theirs, ExitsWith(0));
  ExpectSameLosses(ReadFile(directory + "/losses.txt"), theirs.out, 1e-5);
}

// Parameters of 16 bits over masters and gradients of f32, beside FSDP2 with the same. Rounding
// differs (PyTorch's attention keeps other numbers), so a loss is as near as a few units of bf16's
// last digit.
class NarrowParity : public JobTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(NarrowParity, HasTheLossesOfFsdp2ForTenSteps) {
  const std::string python = PeerPython();
  if (python.empty()) GTEST_SKIP() << kNoPeerPython;
  const std::string directory = Out("parity");
  std::filesystem::create_directory(directory);
  const SubprocessResult ours =
      Start({"run", "--nproc_per_node=2", MUSTER_PARITY_PROBE, directory,
             absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/data/prose.txt"), absl::StrCat(kSteps),
             absl::StrCat(kMicroBatches), GetParam()},
            {{"GLOO_SOCKET_IFNAME", "lo"}})
          .Wait(kPatience);
  ASSERT_THAT(ours, ExitsWith(0));
  const SubprocessResult theirs = PeersOutcome([&] {
    return StartProgram({python, Program("parity_fsdp.py"), directory, absl::StrCat(kSteps),
                         absl::StrCat(kMicroBatches), GetParam()},
                        kNoBytecode)
        .Wait(kPatience);
  });
  ASSERT_THAT(theirs, ExitsWith(0));
  ExpectSameLosses(ReadFile(directory + "/losses.txt"), LossesIn(theirs.out), 2e-3);
}

std::string ConfigFile(const std::string& name) {
  return absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/unit/worker_runtime/options/configs/", name);
}

// The same configuration file here and in the program that it is for.
class FileParity : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    python_ = PeerPython();
    if (python_.empty()) GTEST_SKIP() << kNoPeerPython;
    directory_ = Out("parity");
    std::filesystem::create_directories(directory_ + "/home/.config/instructlab");
  }

  // Ten steps on two ranks of the host, whose losses it returns.
  std::string Ours(const Arguments& options) {
    const std::string text = absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/data/prose.txt");
    Arguments command = {"run", "--nproc_per_node=2", MUSTER_PARITY_PROBE, directory_,
                         text,  absl::StrCat(kSteps)};
    const SubprocessResult result =
        Start(command + options, {{"GLOO_SOCKET_IFNAME", "lo"}, {"HOME", directory_ + "/home"}})
            .Wait(kPatience);
    EXPECT_THAT(result, ExitsWith(0));
    return ReadFile(directory_ + "/losses.txt");
  }

  // What Python prints for `command`.
  std::string Theirs(const Arguments& command) {
    const SubprocessResult result = PeersOutcome(
        [&] { return StartProgram(Arguments{python_} + command, kNoBytecode).Wait(kPatience); });
    EXPECT_THAT(result, ExitsWith(0));
    return LossesIn(result.out);
  }

  std::string python_;
  std::string directory_;
};

// Its GPT is parity_gpt.py's, whose layers PEFT wraps.
TEST_F(FileParity, HasTheLossesOfPeftForAdaptersOfLowRank) {
  Subprocess import = StartProgram({python_, "-c", "import peft"});
  if (import.Wait(kPatience).exit_code != 0) GTEST_SKIP() << python_ << " cannot import peft";
  const std::string ours = Ours({"--lora=4:h.*.c_*.weight", "--plan=zero-2", "--batch_size=3",
                                 "--accumulation=2", "--lr=1e-2"});
  const std::string theirs =
      Theirs({Program("parity_peft.py"), directory_, absl::StrCat(kSteps), "4", "4", "1e-2"});
  ExpectSameLosses(ours, theirs, 1e-5);
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

class DeepSpeedParity : public FileParity, public ::testing::WithParamInterface<DeepSpeedFile> {
 protected:
  void SetUp() override {
    FileParity::SetUp();
    if (IsSkipped() || GetParam().dtype != std::string("f16")) return;
    Subprocess ask = StartProgram(
        {python_, "-c",
         "import sys, torch; sys.exit(not torch.ops.mkldnn._is_mkldnn_fp16_supported())"});
    if (ask.Wait(kPatience).exit_code != 0) {
      GTEST_SKIP() << "DeepSpeed takes no f16 on this processor, which lacks AVX512-FP16";
    }
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
  const std::string ours = Ours(options);
  const std::string theirs =
      Theirs({Program("parity_deepspeed.py"), directory_, absl::StrCat(kSteps), file, "2",
              dtype == "f32" ? "f32" : "own"});
  ExpectSameLosses(ours, theirs, GetParam().tolerance);
}

// Its trainer needs GPUs, so DeepSpeed itself with the file that InstructLab's names is the peer.
TEST_F(FileParity, HasTheLossesOfDeepSpeedForInstructLabsFile) {
  const std::string deepspeed = ConfigFile("ds_full_stage3_offload.json");
  std::filesystem::copy_file(deepspeed, directory_ + "/home/.config/instructlab/ds_config.json");
  const std::string ours = Ours({absl::StrCat("--ilab=", ConfigFile("instructlab.yaml")),
                                 "--dtype=f32", "--device=cpu", "--batch_size=16", "--num_layers=2",
                                 "--num_heads=4", "--hidden_size=64", "--sequence_length=32"});
  const std::string theirs = Theirs(
      {Program("parity_deepspeed.py"), directory_, absl::StrCat(kSteps), deepspeed, "2", "f32"});
  ExpectSameLosses(ours, theirs, 1e-5);
}

class AccelerateParity : public FileParity, public ::testing::WithParamInterface<const char*> {};

// accelerate_fsdp.yaml has no peer here: on the host Accelerate wraps in DDP whatever it says.
TEST_P(AccelerateParity, HasTheLossesOfAccelerateForTheSameFile) {
  const std::string file = ConfigFile(absl::StrCat("accelerate_", GetParam(), ".yaml"));
  const std::string ours = Ours({absl::StrCat("--accelerate=", file), "--device=cpu", "--dtype=f32",
                                 "--lr=1e-3", "--batch_size=3"});
  const std::string theirs =
      Theirs({"-m", "accelerate.commands.launch", "--config_file", file, "--num_processes", "2",
              "--mixed_precision", "no", "--main_process_port", "0",
              Program("parity_accelerate.py"), directory_, absl::StrCat(kSteps)});
  ExpectSameLosses(ours, theirs, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Files, DeepSpeedParity,
                         ::testing::Values(DeepSpeedFile{"ds_full_stage2.json", "f32", 1e-5},
                                           DeepSpeedFile{"ds_stage3_offload.json", "f32", 1e-5},
                                           DeepSpeedFile{"ds_stage1.json", "f32", 1e-5},
                                           DeepSpeedFile{"ds_full_stage3_offload.json", "f16",
                                                         1e-3},
                                           DeepSpeedFile{"ds_minimal_stage2.json", "f16", 1e-3},
                                           DeepSpeedFile{"ds_minimal_stage2.json", "bf16", 3e-3}),
                         [](const auto& file) { return NameOf(file.param); });

INSTANTIATE_TEST_SUITE_P(Files, AccelerateParity, ::testing::Values("multi_gpu", "deepspeed"));

INSTANTIATE_TEST_SUITE_P(Types, NarrowParity, ::testing::Values("bf16", "f16", "f16-torch"),
                         [](const auto& type) {
                           return absl::StrReplaceAll(type.param, {{"-", "_"}});
                         });

INSTANTIATE_TEST_SUITE_P(Ranks, TrainingParity, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace muster::testing
