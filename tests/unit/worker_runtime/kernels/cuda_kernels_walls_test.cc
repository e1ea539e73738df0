// What lets kernels run on the block emulator: they reach the device through simt.h alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

const std::string kKernels = absl::StrCat(kSourceDirectory, "/worker_runtime/kernels/");

// What belongs behind simt.h, or nowhere: the emulator has no twin of it.
std::vector<std::string> ReachesPast(const std::string& text) {
  std::vector<std::string> found;
  for (const char* word :
       {"asm volatile", "<<<", "__shared__", "__shfl", "__ballot", "__syncwarp", "__popc", "atomic",
        "wmma", "cooperative_groups", "<cuda", "__ldg", "warpSize"}) {
    if (absl::StrContains(text, word)) found.push_back(word);
  }
  return found;
}

TEST(KernelWalls, OnlyOneHeaderReachesTheDevice) {
  for (const std::string& file : FilesBelow(kKernels)) {
    if (file == "simt.h" || file == "cuda_kernels.h") continue;
    if (!absl::EndsWith(file, ".cu") && !absl::EndsWith(file, ".h")) continue;
    EXPECT_THAT(ReachesPast(ReadFile(kKernels + file)), IsEmpty()) << file;
  }
  EXPECT_THAT(ReachesPast(ReadFile(kKernels + "simt.h")), Contains("asm volatile"));
}

TEST(KernelWalls, EveryKernelIsCompiledForBoth) {
  const std::string list = ReadFile(kKernels + "cuda_kernels.cmake");
  for (const std::string& file : FilesBelow(kKernels)) {
    if (!absl::EndsWith(file, ".cu")) continue;
    const std::string name = file.substr(0, file.size() - 3);
    EXPECT_TRUE(absl::StrContains(list, absl::StrCat(" ", name, " ")) ||
                absl::StrContains(list, absl::StrCat(" ", name, ")")))
        << file;
  }
}

}  // namespace
}  // namespace muster::testing
