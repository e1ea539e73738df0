// A full disk and a file size limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/small_file_system.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::FilesBelow;
using ::muster::testing::IsOk;
using ::muster::testing::SmallFileSystem;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

NamedArray Floats(const std::string& name, const std::vector<float>& values) {
  return {name, {static_cast<int64_t>(values.size())}, ConstBufferOf(values)};
}

TEST(FullDisk, IsToldWithTheBytesThatAreNeededAndLeavesNothingOfTheNewCheckpoint) {
  const TemporaryDirectory directory;
  const SmallFileSystem disk(directory.path(), "1m");
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  const std::vector<float> small(100, 1.0f);
  const std::vector<float> large(1 << 19, 2.0f);
  const auto first = WriteWholeCheckpoint(disk.path(), {.step = 1}, {Floats("w", small)}, {});
  ASSERT_THAT(first, IsOk());
  const std::vector<std::string> before = FilesBelow(disk.path());

  const auto second = WriteWholeCheckpoint(disk.path(), {.step = 2}, {Floats("w", small)},
                                           {Floats("first_moment.w", large)});

  // 2 MiB and a header.
  EXPECT_THAT(second, StatusIs(kExhausted, AllOf(HasSubstr("optimizer.safetensors"),
                                                 MatchesRegex(".*needs 2097[0-9]+ bytes.*"),
                                                 HasSubstr("Free some space"))));
  EXPECT_EQ(FilesBelow(disk.path()), before);
  const auto newest = OpenNewestCheckpoint(disk.path());
  ASSERT_THAT(newest, IsOk());
  EXPECT_EQ(newest->path, *first);
}

TEST(FullDisk, LeavesTheCheckpointThatWouldHaveBeenReplaced) {
  const TemporaryDirectory directory;
  const SmallFileSystem disk(directory.path(), "1m");
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  const std::vector<float> half(1 << 17, 1.0f);  // half a megabyte: there is no room for two
  ASSERT_THAT(WriteWholeCheckpoint(disk.path(), {.step = 1, .metadata = {{"try", "first"}}},
                                   {Floats("w", half)}, {}),
              IsOk());

  EXPECT_THAT(WriteWholeCheckpoint(disk.path(), {.step = 1}, {Floats("w", half)}, {}),
              StatusIs(kExhausted));

  const auto kept = OpenWholeCheckpoint(disk.path() + "/step_00000001");
  ASSERT_THAT(kept, IsOk());
  EXPECT_EQ(kept->state.metadata.at("try"), "first");
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
    const absl::Status status = WriteSafetensors(path, {Floats("w", values)}, {});
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
