// A full disk and a file size limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/small_file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/saved_by_ranks.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/new_checkpoint.h"
#include "worker_runtime/checkpoint/safetensors.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::FilesBelow;
using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::SmallFileSystem;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

// A parameter and a moment, of 400 bytes and of `bytes`, each by a rank of its own.
SavedState SmallAndLarge(int64_t step, int64_t bytes) {
  SavedState saved = StateOf(step, 1.0f);
  saved.arrays = {Floats("w", {100}, std::vector<float>(100, 1.0f)),
                  Floats("first_moment.w", {bytes / 4},
                         std::vector<float>(static_cast<size_t>(bytes / 4), 1.0f))};
  saved.slices = {{{0, 0, 100}}, {{1, 0, bytes / 4}}};
  return saved;
}

TEST(FullDisk, IsToldWithTheBytesThatAreNeededAndLeavesNothingOfTheNewCheckpoint) {
  const TemporaryDirectory directory;
  const SmallFileSystem disk(directory.path(), "1m");
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  const auto first = Save(disk.path(), 1);
  ASSERT_THAT(first, IsOk());
  const std::vector<std::string> before = FilesBelow(disk.path());

  const auto second = SaveByRanks(disk.path(), SmallAndLarge(2, 2 << 20));

  // 2 MiB and a header.
  EXPECT_THAT(second, StatusIs(kExhausted, AllOf(HasSubstr("slices_00001.safetensors"),
                                                 MatchesRegex(".*needs 2097[0-9]+ bytes.*"),
                                                 HasSubstr("Free some space"))));
  EXPECT_EQ(FilesBelow(disk.path()), before);
  EXPECT_THAT(NewestIn(disk.path()), IsOkAndHolds(*first));
}

TEST(FullDisk, LeavesTheCheckpointThatWouldHaveBeenReplaced) {
  const TemporaryDirectory directory;
  const SmallFileSystem disk(directory.path(), "1m");
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  SavedState half = SmallAndLarge(1, 1 << 19);  // half a megabyte: there is no room for two
  half.state.metadata["try"] = "first";
  const auto path = SaveByRanks(disk.path(), half);
  ASSERT_THAT(path, IsOk());

  half.state.metadata["try"] = "second";
  EXPECT_THAT(SaveByRanks(disk.path(), half), StatusIs(kExhausted));

  const auto kept = Checkpoint::Open(*path);
  ASSERT_THAT(kept, IsOk());
  EXPECT_EQ(kept->state().metadata.at("try"), "first");
  EXPECT_THAT(ReadAll(*kept), IsOk());
}

// The ranks have written all of theirs when the disk has no room for what the first one adds.
TEST(FullDisk, IsToldByTheFirstRankThatPublishes) {
  const TemporaryDirectory directory;
  const SmallFileSystem disk(directory.path(), "1m");
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  ASSERT_THAT(Save(disk.path(), 1, 1.0f), IsOk());
  const std::vector<std::string> before = FilesBelow(disk.path());
  const SavedState saved = StateOf(1, 2.0f);
  {
    auto begun = NewCheckpoint::Begin(disk.path() + "/step_00000001", saved.state);
    ASSERT_THAT(begun, IsOk());
    const auto one = WriteAsRank(begun->hidden(), 0, saved);
    const auto two = WriteAsRank(begun->hidden(), 1, saved);
    ASSERT_THAT(one, IsOk());
    ASSERT_THAT(two, IsOk());
    disk.Fill();
    EXPECT_THAT(begun->Publish(*ManifestOf(saved.state, ToWrite(saved.arrays), {{*one, *two}})),
                StatusIs(kExhausted, HasSubstr("Free some space")));
  }
  std::filesystem::remove(disk.filler());
  EXPECT_EQ(FilesBelow(disk.path()), before);
  EXPECT_THAT(ValueIn(disk.path() + "/step_00000001"), IsOkAndHolds(1.0f));
  EXPECT_THAT(Save(disk.path(), 1, 2.0f), IsOk()) << "there is room again";
}

// The exit code of `body` in a child process, whose limits may be lowered.
int ExitCodeOf(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(FileSizeLimit, IsToldInsteadOfEndingTheProcess) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("x.safetensors");

  const int code = ExitCodeOf([&] {
    const struct rlimit limit = {4096, 4096};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    const std::vector<float> values(10'000);
    const absl::Status status =
        WriteSafetensors(path, {{{"w", {10'000}, ConstBufferOf(values)}}}, {}).status();
    std::printf("%s\n", status.ToString().c_str());
    return status.code() == kExhausted && status.message().find("ulimit -f") != std::string::npos &&
           status.message().find("may have 4096 at most") != std::string::npos;
  });

  EXPECT_EQ(code, 0);
  EXPECT_THAT(FilesBelow(directory.path()), ElementsAre());
}

TEST(FileError, SaysWhatTheCallerShouldDo) {
  EXPECT_THAT(FileError(ENOENT, "x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("x: No such file")));
  EXPECT_THAT(FileError(EROFS, "x"), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(FileError(EDQUOT, "x"), StatusIs(kExhausted));
  EXPECT_THAT(FileError(ENAMETOOLONG, "x"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(FileError(EIO, "x"), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace muster::checkpoint
