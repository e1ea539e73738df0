// What muster-train does with directories: default texts and the place of checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/train/files.h"

namespace muster::train {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::muster::testing::WriteFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DefaultTexts, AreTheRegularFilesByNameAndEachTextOnce) {
  const TemporaryDirectory directory;
  WriteFile(directory.File("GPL-3"), "text");
  WriteFile(directory.File("BSD"), "text");
  std::filesystem::create_symlink("GPL-3", directory.File("GPL"));
  std::filesystem::create_directory(directory.File("more"));
  EXPECT_THAT(DefaultTexts(directory.path()),
              IsOkAndHolds(ElementsAre(directory.File("BSD"), directory.File("GPL-3"))));
}

TEST(DefaultTexts, AskForDataWhereThereAreNone) {
  const TemporaryDirectory directory;
  EXPECT_THAT(DefaultTexts(directory.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--data")));
  EXPECT_THAT(DefaultTexts(directory.File("missing")), StatusIs(absl::StatusCode::kNotFound));
}

TEST(PrepareSaveDirectory, MakesTheDirectoryWithItsParents) {
  const TemporaryDirectory directory;
  EXPECT_THAT(PrepareSaveDirectory(directory.File("a/b")), IsOk());
  EXPECT_TRUE(std::filesystem::is_directory(directory.File("a/b")));
}

TEST(PrepareSaveDirectory, LeavesWhatIsThere) {
  const TemporaryDirectory directory;
  WriteFile(directory.File("kept"), "text");
  EXPECT_THAT(PrepareSaveDirectory(directory.path()), IsOk());
  EXPECT_EQ(testing::ReadFile(directory.File("kept")), "text");
}

TEST(PrepareSaveDirectory, NamesAFileThatIsInTheWay) {
  const TemporaryDirectory directory;
  WriteFile(directory.File("file"), "text");
  EXPECT_THAT(PrepareSaveDirectory(directory.File("file")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(directory.File("file")), HasSubstr("--save"))));
  EXPECT_THAT(PrepareSaveDirectory(directory.File("file/below")),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace muster::train
