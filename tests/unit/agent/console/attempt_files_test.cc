#include "agent/console/attempt_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/patience.h"
#include "tests/support/status_matchers.h"

namespace muster::agent {
namespace {

class AttemptFilesTest : public ::testing::Test {
 protected:
  // Open files of those paths, as an attempt gets them.
  std::map<std::string, OutputFile> Make(const std::vector<std::string>& paths) {
    std::map<std::string, OutputFile> files;
    for (const std::string& path : paths) {
      const std::string directory = path.substr(0, path.rfind('/'));
      EXPECT_THAT(folder_.OpenDirectory(directory), testing::IsOk());
      absl::StatusOr<OutputFile> file = OutputFile::Open(folder_, path, writer_);
      EXPECT_THAT(file, testing::IsOk());
      files.emplace(path, *std::move(file));
    }
    return files;
  }
  std::string Written(const std::string& path) {
    EXPECT_TRUE(writer_->Flush(testing::Patience(absl::Seconds(20))));
    return testing::ReadFile(path);
  }

  const testing::TemporaryDirectory directory_;
  const LogFolder folder_{directory_.path()};
  const std::shared_ptr<FileWriter> writer_ = std::make_shared<FileWriter>();
  AttemptFiles attempt_;
};

TEST_F(AttemptFilesTest, LieInTheDirectoryOfTheAttempt) {
  attempt_.Begin("/logs/attempt_3");
  EXPECT_EQ(attempt_.FilteredPath(ConsoleStream::kStdout), "/logs/attempt_3/filtered_stdout.log");
  EXPECT_EQ(attempt_.FilteredPath(ConsoleStream::kStderr), "/logs/attempt_3/filtered_stderr.log");
  EXPECT_EQ(attempt_.HookPath(), "/logs/attempt_3/hook.log");
  EXPECT_EQ(attempt_.AboutPath(), "/logs/attempt_3/node.json");
}

TEST_F(AttemptFilesTest, TakeTheLinesOfTheirStreamAndDropThoseWithoutAFile) {
  attempt_.Begin(directory_.File("attempt_0"));
  const std::string path = attempt_.FilteredPath(ConsoleStream::kStderr);
  auto files = Make({path});
  attempt_.Open(files);
  attempt_.AddFiltered(ConsoleStream::kStderr, "[0]:", "loss 3");
  attempt_.AddFiltered(ConsoleStream::kStdout, "[0]:", "loss 4");
  attempt_.AddFiltered(ConsoleStream::kStderr, "", "loss 5");
  attempt_.WriteOut();
  attempt_.WriteOut();
  EXPECT_EQ(Written(path), "[0]:loss 3\nloss 5\n");
}

TEST_F(AttemptFilesTest, AreThoseOfTheAttemptBeforeUntilTheNextOneIsOpen) {
  attempt_.Begin(directory_.File("attempt_0"));
  const std::string before = attempt_.FilteredPath(ConsoleStream::kStdout);
  auto files = Make({before});
  attempt_.Open(files);
  attempt_.Begin(directory_.File("attempt_1"));
  const std::string after = attempt_.FilteredPath(ConsoleStream::kStdout);
  attempt_.AddFiltered(ConsoleStream::kStdout, "", "of a kept worker");
  attempt_.WriteOut();
  files = Make({after});
  attempt_.Open(files);
  attempt_.AddFiltered(ConsoleStream::kStdout, "", "of the next");
  attempt_.WriteOut();
  attempt_.CloseFiltered();
  attempt_.AddFiltered(ConsoleStream::kStdout, "", "too late");
  attempt_.WriteOut();
  EXPECT_EQ(Written(before), "of a kept worker\n");
  EXPECT_EQ(Written(after), "of the next\n");
}

TEST_F(AttemptFilesTest, GiveTheHookItsFile) {
  attempt_.Begin(directory_.File("attempt_0"));
  auto files = Make({attempt_.HookPath()});
  attempt_.Open(files);
  EXPECT_EQ(attempt_.hook().path(), attempt_.HookPath());
  EXPECT_TRUE(attempt_.hook().TakeDescriptor());
}

}  // namespace
}  // namespace muster::agent
