// The script for the day a GPU is lent, rehearsed where there is none: from a bundle as it is carried,
// with every GPU hidden.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/files.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

SubprocessResult RunScript(std::vector<std::string> argv) {
  const char* path = std::getenv("PATH");
  return Subprocess({.argv = std::move(argv),
                     .environment = {{"PATH", path == nullptr ? "/usr/bin:/bin" : path},
                                     {"CUDA_VISIBLE_DEVICES", ""}}})
      .Wait();
}

// The rows below the first table's head.
std::vector<std::string> PartsOf(const std::string& results) {
  std::vector<std::string> rows;
  for (const absl::string_view line : absl::StrSplit(results, '\n')) {
    if (absl::StartsWith(line, "| ") && !absl::StartsWith(line, "| part") &&
        !absl::StartsWith(line, "| ---")) {
      rows.emplace_back(line);
    }
  }
  return rows;
}

TEST(RunAll, WithoutAGpuEveryPartSaysThatItWasSkippedAndWhy) {
  const TemporaryDirectory directory;
  const std::string bundle = directory.File("bundle");
  const std::string make = absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/gpu/make_bundle");
  const auto made = RunScript({make, MUSTER_BUILD_DIRECTORY, bundle});
  ASSERT_EQ(made.exit_code, 0) << ToString(made);

  const auto ran = RunScript({bundle + "/run_all", directory.File("output")});
  EXPECT_EQ(ran.exit_code, 0) << ToString(ran);
  const std::string results = ReadFile(directory.File("output/results.md"));
  const auto parts = PartsOf(results);
  EXPECT_THAT(parts, SizeIs(13)) << results;
  for (const std::string& part : parts) {
    const std::vector<std::string> cells = absl::StrSplit(part, " | ");
    ASSERT_THAT(cells, SizeIs(3)) << part;
    EXPECT_EQ(cells[1], "skipped") << part;
    EXPECT_GT(cells[2].size(), 10u) << part;
  }
}

TEST(RunAll, ABundleWithoutProgramsSaysWhichAreMissing) {
  const TemporaryDirectory directory;
  const std::string script = absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/gpu/run_all");
  const auto ran = RunScript({script, directory.path()});
  EXPECT_EQ(ran.exit_code, 0) << ToString(ran);
  EXPECT_THAT(ran.out,
              HasSubstr("| kernels | skipped | cuda_kernels_gpu_test is not in the bundle |"));
}

TEST(RunAll, RunsOnlyThePartsThatAreNamed) {
  const TemporaryDirectory directory;
  const std::string script = absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/gpu/run_all");
  const auto ran = RunScript({script, directory.path(), "racecheck", "tokens"});
  EXPECT_EQ(ran.exit_code, 0) << ToString(ran);
  const auto parts = PartsOf(ReadFile(directory.File("results.md")));
  ASSERT_THAT(parts, SizeIs(2));
  EXPECT_THAT(parts[0], HasSubstr("| kernels under racecheck |"));
  EXPECT_THAT(parts[1], HasSubstr("| tokens/s of "));
}

}  // namespace
}  // namespace muster::testing
