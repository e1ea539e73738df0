// A library that lies in folders as pip lays them out, and one that is nowhere.
#include "proto/io/optional_library.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kFileName[] = "libmuster_not_of_any_machine.so.7";
constexpr char kPackages[] = "/lib/python3.11/site-packages/nvidia/";

class OptionalLibraryTest : public ::testing::Test {
 protected:
  // An environment with that package, which holds the library.
  std::string Install(const std::string& environment, const std::string& package) const {
    const std::string folder = MakeFolder(absl::StrCat(environment, kPackages, package, "/lib"));
    fs::copy_file(testing::Built("libfake_optional_library.so"),
                  absl::StrCat(folder, "/", kFileName));
    return folder;
  }
  std::string MakeFolder(const std::string& name) const {
    const std::string folder = directory_.File(name);
    fs::create_directories(folder);
    return folder;
  }
  LibrarySearch SearchIn(std::vector<std::string> folders) const {
    return {.name = "the library of nobody",
            .file_names = {kFileName},
            .folders = std::move(folders),
            .advice = "install it"};
  }

  const testing::TemporaryDirectory directory_;
};

TEST_F(OptionalLibraryTest, IsTakenFromAFolderWhereTheDynamicLoaderKnowsNone) {
  const std::string folder = Install("env", "nccl");
  const auto library = OptionalLibrary::Open(SearchIn({MakeFolder("empty"), folder}));
  ASSERT_THAT(library, IsOk());
  EXPECT_EQ(library->path(), absl::StrCat(folder, "/", kFileName));
  EXPECT_EQ(library->Find<int (*)()>("fake_answer")(), 42);
}

TEST_F(OptionalLibraryTest, IsTheDynamicLoadersWhereItKnowsOne) {
  const std::string folder = MakeFolder("folder");
  fs::copy_file(testing::Built("libfake_optional_library.so"), folder + "/libm.so.6");
  LibrarySearch search = SearchIn({folder});
  search.file_names = {"libm.so.6"};
  const auto library = OptionalLibrary::Open(search);
  ASSERT_THAT(library, IsOk());
  EXPECT_THAT(library->path(), AllOf(EndsWith("/libm.so.6"), Not(StartsWith(folder))));
}

TEST_F(OptionalLibraryTest, IsTakenFromTheNextFolderWhereAFileIsBroken) {
  const std::string broken = MakeFolder("broken");
  testing::WriteFile(absl::StrCat(broken, "/", kFileName), "no library");
  const std::string whole = Install("env", "nccl");
  const auto library = OptionalLibrary::Open(SearchIn({broken, whole}));
  ASSERT_THAT(library, IsOk());
  EXPECT_THAT(library->path(), StartsWith(whole));
}

TEST_F(OptionalLibraryTest, IsTheLastPathWhereNothingElseIsThere) {
  LibrarySearch search = SearchIn({});
  search.last_path = testing::Built("libfake_optional_library.so");
  const auto library = OptionalLibrary::Open(search);
  ASSERT_THAT(library, IsOk());
  EXPECT_EQ(library->path(), testing::Built("libfake_optional_library.so"));
}

TEST_F(OptionalLibraryTest, SaysAllThatWasTried) {
  const std::string broken = MakeFolder("broken"), empty = MakeFolder("empty");
  testing::WriteFile(absl::StrCat(broken, "/", kFileName), "no library");
  EXPECT_THAT(
      OptionalLibrary::Open(SearchIn({broken, empty})),
      StatusIs(
          absl::StatusCode::kUnavailable,
          AllOf(StartsWith(absl::StrCat("the library of nobody cannot be loaded: ", kFileName,
                                        ": cannot open shared object file")),
                HasSubstr(absl::StrCat(broken, "/", kFileName, ": ")),
                HasSubstr(absl::StrCat("; not in ", empty, " either")), EndsWith("; install it"))));
}

TEST_F(OptionalLibraryTest, FillsATableAndLeavesNullWhatMayLack) {
  const auto library = OptionalLibrary::Open(SearchIn({Install("env", "nccl")}));
  ASSERT_THAT(library, IsOk());
  int (*answer)() = nullptr;
  int (*sum)(int, int) = nullptr;
  int (*later)() = [] { return 1; };
  EXPECT_THAT(
      library->Load(
          {{"fake_answer", answer}, {"fake_sum", sum}, {"fake_later", later, MayLack::kYes}}),
      IsOk());
  EXPECT_EQ(answer(), 42);
  EXPECT_EQ(sum(2, 3), 5);
  EXPECT_EQ(later, nullptr);
}

TEST_F(OptionalLibraryTest, NamesTheFunctionsThatItLacksAndTheFile) {
  const auto library = OptionalLibrary::Open(SearchIn({Install("env", "nccl")}));
  ASSERT_THAT(library, IsOk());
  int (*answer)() = nullptr;
  int (*later)() = nullptr;
  int (*latest)() = nullptr;
  EXPECT_THAT(
      library->Load({{"fake_later", later}, {"fake_answer", answer}, {"fake_latest", latest}}),
      StatusIs(absl::StatusCode::kUnavailable,
               absl::StrCat("the library of nobody (", library->path(),
                            ") lacks fake_later, fake_latest")));
}

TEST_F(OptionalLibraryTest, StaysInMemoryOnlyIfItIsTo) {
  for (const bool stays : {false, true}) {
    LibrarySearch search = SearchIn({Install(absl::StrCat("env", stays), "nccl")});
    search.stays_loaded = stays;
    const std::string path = OptionalLibrary::Open(search)->path();
    void* const still_there = ::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    EXPECT_EQ(still_there != nullptr, stays);
    if (still_there != nullptr) ::dlclose(still_there);
  }
}

TEST_F(OptionalLibraryTest, IsFoundWhereTheInterpretersOfAnEnvironmentHavePackages) {
  const std::string root = directory_.File("env");
  for (const char* path : {"lib/python3.11/site-packages/nvidia/cu13/lib",
                           "lib/python3.11/site-packages/nvidia/cublas/lib",
                           "lib/python3.11/site-packages/nvidia/nccl/lib",
                           "lib/python3.12/dist-packages/nvidia/cu13/lib",
                           "lib64/python3.12/site-packages/nvidia/cublas/lib",
                           "lib/elsewhere/site-packages/nvidia/cu13/lib"}) {
    MakeFolder(absl::StrCat("env/", path));
  }
  EXPECT_THAT(FoldersOfPackages({directory_.File("none"), root}, {"cu13", "cublas"}),
              ElementsAre(root + "/lib/python3.11/site-packages/nvidia/cu13/lib",
                          root + "/lib/python3.11/site-packages/nvidia/cublas/lib",
                          root + "/lib/python3.12/dist-packages/nvidia/cu13/lib",
                          root + "/lib64/python3.12/site-packages/nvidia/cublas/lib"));
  EXPECT_THAT(FoldersOfPackages({root}, {"cudnn"}), IsEmpty());
}

// `python -m venv` makes such a link.
TEST_F(OptionalLibraryTest, IsNotFoundTwiceWhereOneFolderIsALinkToTheOther) {
  Install("env", "nccl");
  fs::create_directory_symlink("lib", directory_.File("env/lib64"));
  EXPECT_THAT(FoldersOfPackages({directory_.File("env")}, {"nccl"}),
              ElementsAre(directory_.File("env/lib/python3.11/site-packages/nvidia/nccl/lib")));
}

TEST(OwnPythonEnvironments, AreThatOfTheProgramAndTheActiveOne) {
  ::setenv("VIRTUAL_ENV", "/home/user/env", 1);
  ::setenv("CONDA_PREFIX", "", 1);
  const fs::path program = fs::read_symlink("/proc/self/exe");
  ASSERT_EQ(program.parent_path().filename(), "bin");
  EXPECT_THAT(OwnPythonEnvironments(),
              ElementsAre(program.parent_path().parent_path().string(), "/home/user/env"));
}

}  // namespace
}  // namespace muster
