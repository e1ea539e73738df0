#include "proto/io/read_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
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

TEST(TextOf, IsEmptyWhereNothingCanBeRead) {
  EXPECT_EQ(TextOf("/proc/self/is_not_there"), "");
  EXPECT_EQ(TextOf("/proc/self"), "");
}

}  // namespace
}  // namespace muster
