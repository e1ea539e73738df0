#include "worker_runtime/train/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>

#include "tests/support/status_matchers.h"

namespace muster::train {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGigabyte = 1'000'000'000;

TEST(CheckFitsMachine, AcceptsAModelWhoseStateFits) {
  EXPECT_THAT(CheckFitsMachine(DecoderConfig(), DType::kF32, 2, kGigabyte), IsOk());
}

TEST(CheckFitsMachine, RefusesAModelThatNoActivationWouldFitBeside) {
  const DecoderConfig gpt2 = {
      .layers = 48, .heads = 25, .hidden_size = 1600, .context = 1024, .vocabulary = 50257};
  EXPECT_THAT(
      CheckFitsMachine(gpt2, DType::kF32, 1, 24 * kGigabyte),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("24.9 GB"), HasSubstr("24.0 GB"), HasSubstr("hidden size"))));
}

TEST(CheckFitsMachine, CountsAllRanksOfTheMachine) {
  const int64_t bytes_of_one = 4 * 4 * DecoderConfig().num_parameters();
  EXPECT_THAT(CheckFitsMachine(DecoderConfig(), DType::kF32, 1, bytes_of_one), IsOk());
  EXPECT_THAT(CheckFitsMachine(DecoderConfig(), DType::kF32, 2, bytes_of_one),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 ranks")));
}

TEST(ResidentBytes, ReadsTheKernelsText) {
  EXPECT_EQ(ResidentBytes("Name:\tx\nVmHWM:\t   9 kB\nVmRSS:\t   27844 kB\nThreads: 3\n"),
            27844 * 1024);
}

TEST(ResidentBytes, AreNotKnownFromAnythingElse) {
  EXPECT_EQ(ResidentBytes(""), 0);
  EXPECT_EQ(ResidentBytes("VmRSS:\tmany kB\n"), 0);
}

std::string LimitsOf(const std::map<std::string, std::string>& files, const std::string& path) {
  const auto found = files.find(path);
  return found == files.end() ? "" : found->second;
}

TEST(ControlGroupBytes, AreTheLeastOfAGroupAndThoseAboveIt) {
  const std::map<std::string, std::string> files = {
      {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
      {"/sys/fs/cgroup/a/memory.max", "3000000\n"},
      {"/sys/fs/cgroup/memory.max", "4000000\n"},
      {"/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "2000000\n"}};
  const auto read = [&](const std::string& path) { return LimitsOf(files, path); };
  EXPECT_EQ(ControlGroupBytes("0::/a/b\n", read), 3000000);
  EXPECT_EQ(ControlGroupBytes("0::/\n", read), 4000000);
  EXPECT_EQ(ControlGroupBytes("5:cpu,memory:/docker/x\n", read), 2000000);
}

TEST(ControlGroupBytes, AreNoLimitWhereNothingIsSaid) {
  const auto read = [](const std::string&) { return std::string(); };
  for (const char* text : {"", "0::/a\n", "nonsense\n", "0::\n"}) {
    EXPECT_EQ(ControlGroupBytes(text, read), std::numeric_limits<int64_t>::max()) << text;
  }
}

}  // namespace
}  // namespace muster::train
