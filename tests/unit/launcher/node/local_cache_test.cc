#include "launcher/node/local_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/support/files.h"

namespace muster::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(LocalCacheVariables, AreThoseThatTheUserHasNotSet) {
  EXPECT_THAT(LocalCacheVariables("/nvme/me", {{"TRITON_CACHE_DIR", "/home/me/t"},
                                               {"CUDA_CACHE_PATH", ""},
                                               {"HOME", "/home/me"}}),
              UnorderedElementsAre(Pair("TORCHINDUCTOR_CACHE_DIR", "/nvme/me/inductor"),
                                   Pair("TORCH_EXTENSIONS_DIR", "/nvme/me/torch_extensions"),
                                   Pair("PYTORCH_KERNEL_CACHE_PATH", "/nvme/me/torch_kernels")));
}

TEST(MakeLocalCache, MakesFoldersForThisUserAlone) {
  const muster::testing::TemporaryDirectory directory;
  const EnvironmentMap variables = LocalCacheVariables(directory.File("a/b"), {});
  ASSERT_TRUE(MakeLocalCache(variables).ok());
  EXPECT_TRUE(MakeLocalCache(variables).ok()) << "they are there already";
  for (const auto& [name, folder] : variables) {
    struct stat info;
    ASSERT_EQ(stat(folder.c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0777u, 0700u) << name;
  }
}

TEST(MakeLocalCache, RefusesWhatIsNoFolderOfThisUser) {
  const muster::testing::TemporaryDirectory directory;
  std::ofstream(directory.File("file")) << "no folder";
  EXPECT_THAT(std::string(MakeLocalCache({{"CUDA_CACHE_PATH", directory.File("file")}}).message()),
              AllOf(HasSubstr(directory.File("file")), HasSubstr("CUDA_CACHE_PATH"),
                    HasSubstr("it is not a folder")));
  EXPECT_EQ(MakeLocalCache({{"CUDA_CACHE_PATH", directory.File("file/below")}}).code(),
            absl::StatusCode::kInvalidArgument);
  std::filesystem::create_directory(directory.File("mine"));
  std::filesystem::create_directory_symlink(directory.File("mine"), directory.File("link"));
  EXPECT_THAT(std::string(MakeLocalCache({{"CUDA_CACHE_PATH", directory.File("link")}}).message()),
              HasSubstr("it is not a folder"));
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  std::filesystem::create_directory(directory.File("theirs"));
  ASSERT_EQ(chown(directory.File("theirs").c_str(), 12345, 12345), 0);
  EXPECT_THAT(
      std::string(MakeLocalCache({{"CUDA_CACHE_PATH", directory.File("theirs")}}).message()),
      HasSubstr("another user"));
}

}  // namespace
}  // namespace muster::launcher
