// What `cmake --install` puts into a directory is enough for a project of somebody else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

constexpr absl::Duration kBuildPatience = absl::Seconds(100);

constexpr char kProject[] = R"(
cmake_minimum_required(VERSION 3.25)
project(app CXX)
find_package(muster REQUIRED)
add_executable(app app.cc headers.cc)
target_link_libraries(app muster::muster)
)";

class Package : public JobTest {
 protected:
  // Runs a program of the build, whose PATH is this test's own.
  SubprocessResult RunTool(const std::vector<std::string>& argv) const {
    const char* path = std::getenv("PATH");
    return StartProgram(argv, {{"PATH", path == nullptr ? "/usr/bin:/bin" : path}})
        .Wait(kBuildPatience);
  }
  void Install() const {
    ASSERT_THAT(RunTool({MUSTER_CMAKE, "--install", Built(".."), "--prefix", prefix_}),
                ExitsWith(0));
  }
  // Returns its path. The compression is light, since a build for daily work is large.
  std::string MakeBundle(const std::string& folder) const {
    const char* path = std::getenv("PATH");
    const SubprocessResult made =
        StartProgram(
            {absl::StrCat(kSourceDirectory, "/deploy/bundle"), Built(".."), Out(folder)},
            {{"PATH", path == nullptr ? "/usr/bin:/bin" : path}, {"MUSTER_ZSTD_LEVEL", "1"}})
            .Wait(kBuildPatience);
    EXPECT_THAT(made, ExitsWith(0));
    return std::string(absl::StripAsciiWhitespace(made.out));
  }
  void BuildProject(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> configure = {MUSTER_CMAKE,
                                          "-S",
                                          directory(),
                                          "-B",
                                          build_,
                                          "-GNinja",
                                          absl::StrCat("-DCMAKE_PREFIX_PATH=", prefix_),
                                          absl::StrCat("-DCMAKE_CXX_COMPILER=", MUSTER_CXX)};
    configure.insert(configure.end(), more.begin(), more.end());
    ASSERT_THAT(RunTool(configure), ExitsWith(0));
    ASSERT_THAT(RunTool({MUSTER_CMAKE, "--build", build_}), ExitsWith(0));
  }

  const std::string prefix_ = directory() + "/prefix";
  const std::string build_ = directory() + "/build";
  const std::string readme_ = absl::StrCat(kSourceDirectory, "/deploy/docs/train.md");
};

std::string ProgramIn(const std::string& readme) {
  const size_t fence = readme.find("```cpp\n");
  if (fence == std::string::npos) return "";
  const size_t begin = fence + 7;
  return readme.substr(begin, readme.find("\n```", begin) - begin) + "\n";
}

// Includes every public header, and has what this tree's own flags would refuse.
std::string IncludesOf(const std::string& include_directory) {
  std::string text;
  for (const std::string& file : FilesBelow(include_directory)) {
    if (absl::StartsWith(file, "muster/")) absl::StrAppend(&text, "#include \"", file, "\"\n");
  }
  return text + "void Unused() { int nothing; }\n";
}

TEST_F(Package, HasProgramsHeadersLibraryAndConfiguration) {
  Install();

  EXPECT_THAT(FilesBelow(prefix_),
              IsSupersetOf({"bin/all_reduce_perf", "bin/muster", "bin/muster-train", "bin/musterd",
                            "include/muster/engine.h", "include/proto/base/status_macros.h",
                            "lib/cmake/muster/muster-config.cmake", "lib/libmuster.a",
                            "share/muster/python/muster/__init__.py"}));
}

TEST_F(Package, LetsAProjectOfFiveLinesBuildAndRunTheProgramOfTheReadme) {
  Install();
  WriteFile(directory() + "/CMakeLists.txt", kProject);
  WriteFile(directory() + "/app.cc", ProgramIn(ReadFile(readme_)));
  WriteFile(directory() + "/headers.cc", IncludesOf(prefix_ + "/include"));
  BuildProject({"-DCMAKE_CXX_FLAGS=-Wall"});

  const SubprocessResult result = StartProgram({build_ + "/app", readme_}).Wait(kBuildPatience);

  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("step 100  loss "));
  const std::string exported = directory() + "/exported";
  EXPECT_THAT(
      StartProgram({prefix_ + "/bin/muster", "export", directory() + "/checkpoint", exported})
          .Wait(),
      ExitsWith(0));
  EXPECT_THAT(ReadFile(exported + "/model.safetensors"), Not(IsEmpty()));
}

// The archive is all that its user has of this tree.
TEST_F(Package, LetsThatProjectBuildFromTheBundleWhichHasTheSameBytesAgain) {
  const std::string bundle = MakeBundle("bundle");
  EXPECT_THAT(bundle, EndsWith(".tar.zst"));
  EXPECT_TRUE(ReadFile(bundle) == ReadFile(MakeBundle("again")));
  ASSERT_THAT(RunTool({"/bin/mkdir", prefix_}), ExitsWith(0));
  ASSERT_THAT(RunTool({"/bin/tar", "--extract", "--zstd", "--strip-components=1",
                       "--directory=" + prefix_, "--file=" + bundle}),
              ExitsWith(0));
  WriteFile(directory() + "/CMakeLists.txt", kProject);
  WriteFile(directory() + "/app.cc", ProgramIn(ReadFile(readme_)));
  WriteFile(directory() + "/headers.cc", "");
  BuildProject();

  EXPECT_THAT(StartProgram({build_ + "/app", readme_}).Wait(kBuildPatience), ExitsWith(0));
  EXPECT_THAT(RunTool({prefix_ + "/bin/muster", "--version"}), ExitsWith(0));
}

constexpr char kAsksForCuda[] = R"(
#include <cstdio>
#include <string>
#include "muster/cuda_device.h"
#include "muster/runtime.h"
int main() {
  auto runtime = muster::Runtime::FromEnvironment();
  if (!runtime.ok()) return 1;
  const auto world = (*runtime)->MakeCommunicator("world", "nccl");
  std::printf("%s\n", std::string(world.status().message()).c_str());
  const auto device = muster::OpenCudaDevice(0);
  std::printf("%s\n", std::string(device.status().message()).c_str());
}
)";

// The program says that there is no GPU, or that there was no toolkit.
TEST_F(Package, LinksTheCudaDeviceThatItsMachineCanLink) {
  Install();
  WriteFile(directory() + "/CMakeLists.txt", kProject);
  WriteFile(directory() + "/app.cc", kAsksForCuda);
  WriteFile(directory() + "/headers.cc", "");
  BuildProject();

  const SubprocessResult result =
      StartProgram({build_ + "/app"}, {{"CUDA_VISIBLE_DEVICES", ""}}).Wait(kBuildPatience);

  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("device cuda: "));
}

TEST_F(Package, NeedsNoCudaToolkitWhereverItWasBuilt) {
  Install();
  WriteFile(directory() + "/CMakeLists.txt", kProject);
  WriteFile(directory() + "/app.cc", kAsksForCuda);
  WriteFile(directory() + "/headers.cc", "");
  BuildProject({"-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON"});

  const SubprocessResult result = StartProgram({build_ + "/app"}).Wait(kBuildPatience);

  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("linked without NCCL"));
  EXPECT_THAT(result.out, HasSubstr("linked without CUDA"));
}

}  // namespace
}  // namespace muster::testing
