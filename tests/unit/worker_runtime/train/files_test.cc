// What muster-train does with directories: default texts and the place of checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/train/files.h"

namespace muster::train {
namespace {

using ::muster::testing::FileExists;
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

TEST(SharedMark, IsSeenInItsDirectoryAndInNoOtherAndGoes) {
  const TemporaryDirectory directory;
  std::string path;
  {
    const auto mark = SharedMark::Make(directory.File("saved"));
    ASSERT_THAT(mark, IsOk());
    path = mark->path();
    EXPECT_THAT(SeesMark(path, directory.File("saved")), IsOk());
    EXPECT_THAT(SeesMark(directory.File("other/mark"), "saved"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("not the directory that rank 0 has under this name")));
  }
  EXPECT_FALSE(FileExists(path));
}

TEST(LiesIn, ComparesPlacesAndNotNames) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.File("saved"));
  std::filesystem::create_symlink("saved", directory.File("link"));
  const std::string saved = directory.File("saved");
  EXPECT_TRUE(LiesIn(saved, saved + "/"));
  EXPECT_TRUE(LiesIn(saved + "/step_00000001", directory.File("link")));
  EXPECT_TRUE(LiesIn("a/../b/c", "./b"));
  EXPECT_FALSE(LiesIn(saved, saved + "/step_00000001"));
  EXPECT_FALSE(LiesIn(saved + "2", saved));
}

}  // namespace
}  // namespace muster::train
