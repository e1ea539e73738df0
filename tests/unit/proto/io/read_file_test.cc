#include "proto/io/read_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "tests/support/files.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(ReadFile, ReadsToTheEnd) {
  const testing::TemporaryDirectory directory;
  const std::string text = "begin" + std::string(100'000, '\0') + "end";
  testing::WriteFile(directory.File("file"), text);
  EXPECT_EQ(ReadFile(directory.File("file")).value(), text);
  EXPECT_EQ(TextOf(directory.File("file")), text);
}

TEST(ReadFile, ReadsWhatTheKernelGivesNoSizeFor) {
  EXPECT_THAT(TextOf("/proc/self/status"), StartsWith("Name:\tread_file_test\n"));
}

TEST(ReadFile, SaysWhyNot) {
  const auto reason = [](const std::string& path) {
    return std::string(ReadFile(path).status().message());
  };
  EXPECT_THAT(reason("/proc/self/is_not_there"), HasSubstr("No such file or directory"));
  // Opens, and then cannot be read: as what the kernel tells of a process that ends meanwhile.
  EXPECT_THAT(reason("/proc/self"), HasSubstr("Is a directory"));
}

TEST(ReadFile, StopsAtTheBytesThatItMayRead) {
  const testing::TemporaryDirectory directory;
  testing::WriteFile(directory.File("file"), std::string(10'000, 'x'));
  EXPECT_EQ(TextOf(directory.File("file"), 5000), std::string(5000, 'x'));
  EXPECT_EQ(TextOf(directory.File("file"), 10'001).size(), 10'000u);
}

TEST(NamesIn, AreSortedAndNoneWhereNothingCanBeRead) {
  const testing::TemporaryDirectory directory;
  for (const char* name : {"b", ".c", "a"}) testing::WriteFile(directory.File(name), "");
  EXPECT_THAT(NamesIn(directory.path()), ElementsAre(".c", "a", "b"));
  EXPECT_THAT(NamesIn(directory.File("a")), IsEmpty());
  EXPECT_THAT(NamesIn(directory.File("is_not_there")), IsEmpty());
}

TEST(ReplaceFile, ReplacesALinkAndLeavesWhatItLedToAlone) {
  const testing::TemporaryDirectory directory;
  testing::WriteFile(directory.File("theirs"), "theirs");
  std::filesystem::create_symlink(directory.File("theirs"), directory.File("file"));
  ASSERT_EQ(ReplaceFile(directory.File("file"), "ours", 0640), 0);
  EXPECT_EQ(TextOf(directory.File("file")), "ours");
  EXPECT_EQ(TextOf(directory.File("theirs")), "theirs");
  EXPECT_EQ(std::filesystem::status(directory.File("file")).permissions(),
            std::filesystem::perms{0640});
  EXPECT_THAT(NamesIn(directory.path()), ElementsAre("file", "theirs"));
}

TEST(ReplaceFile, LeavesNothingWhereItFails) {
  const testing::TemporaryDirectory directory;
  std::filesystem::create_directory(directory.File("folder"));
  EXPECT_EQ(ReplaceFile(directory.File("folder"), "x"), EISDIR);
  EXPECT_EQ(ReplaceFile(directory.File("absent/file"), "x"), ENOENT);
  EXPECT_THAT(NamesIn(directory.path()), ElementsAre("folder"));
}

TEST(TextOf, IsEmptyWhereNothingCanBeRead) {
  EXPECT_EQ(TextOf("/proc/self/is_not_there"), "");
  EXPECT_EQ(TextOf("/proc/self"), "");
}

}  // namespace
}  // namespace muster
