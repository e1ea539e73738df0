// muster-train on a GPU, from the command line: beside the host, under muster run with two workers
// that share the GPU over Gloo, and over NCCL, for which each worker's NCCL_HOSTID says that it is
// a host of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "muster/cuda_device.h"
#include "tests/support/files.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::SizeIs;

constexpr int kSteps = 12;

// The folder of this program, where the others are too.
std::string Folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

Environment EnvironmentOfPrograms() {
  const auto inherited = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  Environment environment = {
      {"PATH", inherited("PATH")},
      {"LD_LIBRARY_PATH", absl::StrCat(Folder(), "/../lib:", inherited("LD_LIBRARY_PATH"))},
      {"NCCL_SOCKET_IFNAME", "lo"},
      {"NCCL_IB_DISABLE", "1"},
      {"NCCL_MAX_CTAS", "2"}};
  if (const std::string visible = inherited("CUDA_VISIBLE_DEVICES"); !visible.empty()) {
    environment["CUDA_VISIBLE_DEVICES"] = visible;
  }
  return environment;
}

class TrainingOnAGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> gpus = CountCudaDevices();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status().message();
    if (*gpus == 0) GTEST_SKIP() << "no GPU";
    std::string text;
    for (int i = 0; i < 400; ++i) absl::StrAppend(&text, "line ", i % 7, " of a text, again. ");
    WriteFile(directory_.File("text"), text);
  }

  std::vector<std::string> Command(const std::vector<std::string>& more) const {
    std::vector<std::string> argv = {absl::StrCat(Folder(), "/muster-train"),
                                     absl::StrCat("--data=", directory_.File("text")),
                                     absl::StrCat("--steps=", kSteps),
                                     "--layers=2",
                                     "--heads=2",
                                     "--width=64",
                                     "--context=64",
                                     "--batch_size=4",
                                     "--seed=7",
                                     "--lr=3e-3",
                                     "--log_every=1",
                                     "--sample_tokens=0"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }

  // The losses of its lines, one for each step.
  static std::vector<double> Train(std::vector<std::string> argv) {
    const SubprocessResult result =
        Subprocess({.argv = std::move(argv), .environment = EnvironmentOfPrograms()})
            .Wait(absl::Minutes(5));
    EXPECT_EQ(result.exit_code, 0) << ToString(result);
    std::vector<double> losses;
    for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
      const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      for (size_t i = 0; i + 1 < words.size() && absl::StrContains(line, "step "); ++i) {
        double loss = 0;
        if (words[i] == "loss" && absl::SimpleAtod(words[i + 1], &loss)) losses.push_back(loss);
      }
    }
    EXPECT_THAT(losses, SizeIs(kSteps)) << ToString(result);
    return losses;
  }

  // Two workers on the first GPU, each as if on a host of its own. muster run says which line is
  // whose; lines of steps are rank 0's.
  std::vector<double> TrainTwo(const std::vector<std::string>& more) const {
    const std::string worker =
        absl::StrCat("NCCL_HOSTID=muster-test-host-$RANK exec ", absl::StrJoin(Command(more), " "));
    return Train({absl::StrCat(Folder(), "/muster"), "run", "--standalone", "--nproc_per_node=2",
                  "/bin/sh", "-c", worker});
  }

  static void ExpectNear(const std::vector<double>& losses, const std::vector<double>& expected,
                         double tolerance) {
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], tolerance * expected[i]) << "step " << i + 1;
    }
  }

  const TemporaryDirectory directory_;
};

TEST_F(TrainingOnAGpu, LearnsAsTheHostDoesInFloatAndNearlyInSixteenBits) {
  const std::vector<double> host = Train(Command({}));
  ASSERT_THAT(host, SizeIs(kSteps));
  EXPECT_LT(host.back(), 0.9 * host.front());
  ExpectNear(Train(Command({"--device=cuda"})), host, 5e-3);
  ExpectNear(Train(Command({"--device=cuda", "--dtype=bf16"})), host, 5e-2);
  ExpectNear(Train(Command({"--device=cuda", "--dtype=f16"})), host, 5e-2);
}

TEST_F(TrainingOnAGpu, HasTheSameBitsAgainInOrderedMode) {
  for (const char* dtype : {"--dtype=f32", "--dtype=bf16", "--dtype=f16"}) {
    const auto hash = [&] {
      const SubprocessResult result =
          Subprocess({.argv = Command({"--device=cuda", "--cuda_attention=own", "--mode=ordered",
                                       dtype, "--hash", "--quiet"}),
                      .environment = EnvironmentOfPrograms()})
              .Wait(absl::Minutes(5));
      EXPECT_TRUE(absl::StartsWith(result.out, "hash=")) << ToString(result);
      return result.out;
    };
    EXPECT_EQ(hash(), hash()) << dtype;
  }
}

TEST_F(TrainingOnAGpu, LearnsWithAttentionByCudnnAndHasTheSameBitsAgainInOrderedMode) {
  if (const auto device = OpenCudaDevice(0, {.attention = CudaAttention::kCudnn}); !device.ok()) {
    GTEST_SKIP() << device.status().message();
  }
  const std::vector<double> host = Train(Command({}));
  for (const char* dtype : {"--dtype=bf16", "--dtype=f16"}) {
    ExpectNear(Train(Command({"--device=cuda", "--cuda_attention=cudnn", dtype})), host, 5e-2);
    const auto hash = [&] {
      return Subprocess({.argv = Command({"--device=cuda", "--cuda_attention=cudnn",
                                          "--mode=ordered", dtype, "--hash", "--quiet"}),
                         .environment = EnvironmentOfPrograms()})
          .Wait(absl::Minutes(5))
          .out;
    };
    const std::string once = hash();
    EXPECT_TRUE(absl::StartsWith(once, "hash=")) << once;
    EXPECT_EQ(hash(), once) << dtype;
  }
}

TEST_F(TrainingOnAGpu, TwoWorkersShareItOverGloo) {
  const std::vector<double> host = TrainTwo({"--plan=zero-2"});
  ExpectNear(TrainTwo({"--plan=zero-2", "--device=cuda", "--backend=gloo"}), host, 5e-3);
}

TEST_F(TrainingOnAGpu, TwoWorkersShareItOverNccl) {
  const std::vector<double> host = TrainTwo({"--plan=zero-2"});
  ExpectNear(TrainTwo({"--plan=zero-2", "--device=cuda", "--backend=nccl"}), host, 5e-3);
}

TEST_F(TrainingOnAGpu, TwoWorkersCaptureTheirStepsOverNccl) {
  const std::vector<double> called = TrainTwo({"--device=cuda", "--backend=nccl"});
  ExpectNear(TrainTwo({"--device=cuda", "--backend=nccl", "--capture_steps=yes"}), called, 1e-3);
}

TEST_F(TrainingOnAGpu, TwoWorkersRegisterTheirBuffersWithNcclCalledAndCaptured) {
  for (const char* plan : {"--plan=ddp", "--plan=zero-3"}) {
    const std::vector<double> plain = TrainTwo({"--device=cuda", "--backend=nccl", plan});
    for (const char* captures : {"--capture_steps=no", "--capture_steps=yes"}) {
      ExpectNear(
          TrainTwo({"--device=cuda", "--backend=nccl", plan, captures, "--register_buffers=yes"}),
          plain, 1e-3);
    }
  }
}

}  // namespace
}  // namespace muster::testing
