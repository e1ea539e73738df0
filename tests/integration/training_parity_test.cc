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
                         absl::StrCat(kMicroBatches)})
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
                         absl::StrCat(kMicroBatches), GetParam()})
        .Wait(kPatience);
  });
  ASSERT_THAT(theirs, ExitsWith(0));
  ExpectSameLosses(ReadFile(directory + "/losses.txt"), theirs.out, 2e-3);
}

// The same configuration file through DeepSpeed, in f32 on both sides; a file without an optimizer
// means the program's own.
class DeepSpeedParity : public JobTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(DeepSpeedParity, HasTheLossesOfDeepSpeedForTheSameFile) {
  const std::string python = PeerPython();
  if (python.empty()) GTEST_SKIP() << kNoPeerPython;
  const std::string directory = Out("parity");
  std::filesystem::create_directory(directory);
  const std::string file = absl::StrCat(MUSTER_SOURCE_DIRECTORY,
                                        "/tests/unit/worker_runtime/options/configs/", GetParam());
  const std::string text = ReadFile(file);
  Arguments command = {"run",
                       "--nproc_per_node=2",
                       MUSTER_PARITY_PROBE,
                       directory,
                       absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/data/prose.txt"),
                       absl::StrCat(kSteps),
                       absl::StrCat("--deepspeed=", file),
                       "--dtype=f32"};
  if (!absl::StrContains(text, "train_batch_size")) command.push_back("--batch_size=3");
  if (!absl::StrContains(text, "\"optimizer\"")) command.push_back("--lr=1e-3");
  const SubprocessResult ours = Start(command, {{"GLOO_SOCKET_IFNAME", "lo"}}).Wait(kPatience);
  ASSERT_THAT(ours, ExitsWith(0));
  const SubprocessResult theirs = PeersOutcome([&] {
    return StartProgram(
               {python, Program("parity_deepspeed.py"), directory, absl::StrCat(kSteps), file, "2"})
        .Wait(kPatience);
  });
  ASSERT_THAT(theirs, ExitsWith(0));
  std::string losses;  // beside what DeepSpeed prints
  for (absl::string_view line : absl::StrSplit(theirs.out, '\n')) {
    if (absl::ConsumePrefix(&line, "loss ")) absl::StrAppend(&losses, line, "\n");
  }
  ExpectSameLosses(ReadFile(directory + "/losses.txt"), losses, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Files, DeepSpeedParity,
                         ::testing::Values("ds_full_stage2.json", "ds_stage3_offload.json",
                                           "ds_stage1.json"),
                         [](const auto& file) {
                           const std::string name = file.param;
                           return name.substr(0, name.find('.'));
                         });

INSTANTIATE_TEST_SUITE_P(Types, NarrowParity, ::testing::Values("bf16", "f16", "f16-torch"),
                         [](const auto& type) {
                           return absl::StrReplaceAll(type.param, {{"-", "_"}});
                         });

INSTANTIATE_TEST_SUITE_P(Ranks, TrainingParity, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace muster::testing
