#include "agent/process/file_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/support/files.h"

namespace muster::agent {
namespace {

using muster::testing::ReadFile;
using muster::testing::TemporaryDirectory;

std::shared_ptr<AppendedFile> OpenFile(const std::string& path) {
  return std::make_shared<AppendedFile>(
      path, UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)));
}

class FileWriterTest : public ::testing::Test {
 protected:
  FileWriterTest() { std::signal(SIGPIPE, SIG_IGN); }
};

// A file whose file system has stopped to answer: a pipe that nobody reads.
struct Hung {
  Hung() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader.reset(ends[0]);
    file = std::make_shared<AppendedFile>("/hung", UniqueFd(ends[1]));
  }
  UniqueFd reader;
  std::shared_ptr<AppendedFile> file;
};

TEST_F(FileWriterTest, WritesEachFileInOrder) {
  TemporaryDirectory directory;
  FileWriter writer;
  const auto a = OpenFile(directory.File("a")), b = OpenFile(directory.File("b"));
  for (int i = 0; i < 100; ++i) {
    writer.Append(a, std::to_string(i) + "\n");
    writer.Append(b, "x");
  }
  ASSERT_TRUE(writer.Flush(absl::Seconds(30)));
  EXPECT_EQ(ReadFile(directory.File("a")).substr(0, 8), "0\n1\n2\n3\n");
  EXPECT_EQ(ReadFile(directory.File("b")), std::string(100, 'x'));
  EXPECT_EQ(a->lost_bytes, 0);
}

TEST_F(FileWriterTest, GoesOnAtOnceWhileAFileSystemHangs) {
  Hung hung;
  FileWriter writer;
  const std::string megabyte(size_t{1} << 20, 'x');
  for (int i = 0; i < 64; ++i) writer.Append(hung.file, megabyte);
  EXPECT_FALSE(writer.Flush(absl::Milliseconds(10)));
  EXPECT_EQ(hung.file->lost_bytes, int64_t{32} << 20) << "what is over the bound";
  hung.reader.reset();  // it answers again, with an error
}

TEST_F(FileWriterTest, DoesATaskBehindWhatWasQueuedBefore) {
  TemporaryDirectory directory;
  FileWriter writer;
  const auto file = OpenFile(directory.File("a"));
  std::string seen;
  writer.Append(file, "written");
  writer.Do([&] { seen = ReadFile(directory.File("a")); });
  ASSERT_TRUE(writer.Flush(absl::Seconds(30)));
  EXPECT_EQ(seen, "written");
}

TEST_F(FileWriterTest, EndsWithoutWaitingForAFileSystemThatHangs) {
  Hung hung;
  {
    FileWriter writer;
    writer.Append(hung.file, std::string(size_t{1} << 20, 'x'));
  }
  hung.reader.reset();
}

TEST_F(FileWriterTest, CountsWhatAFullFileSystemDoesNotTake) {
  FileWriter writer;
  const auto full = std::make_shared<AppendedFile>(
      "/dev/full", UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)));
  writer.Append(full, "12345");
  ASSERT_TRUE(writer.Flush(absl::Seconds(30)));
  EXPECT_EQ(full->lost_bytes, 5);
}

}  // namespace
}  // namespace muster::agent
