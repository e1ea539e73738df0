// A pipe with a name keeps who opens or reads it waiting as a file system does that is slow.
#include "agent/watch/file_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "agent/watch/process_look.h"
#include "proto/base/mono_time.h"
#include "tests/support/files.h"
#include "tests/support/hung_file_system.h"
#include "tests/support/subprocess.h"

namespace muster::agent {
namespace {

using ::muster::testing::HungFileSystem;
using ::muster::testing::Subprocess;
using ::muster::testing::WaitUntil;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FileCall : public ::testing::Test {
 protected:
  FileCall() { EXPECT_EQ(::mkfifo(pipe_.c_str(), 0600), 0); }
  // Waits until the process is in a call about the file.
  static std::string CallOf(const Subprocess& process, const std::string& file) {
    std::string call;
    EXPECT_TRUE(WaitUntil([&] {
      call = FileCallOf(process.pid());
      return call.find(file) != std::string::npos;
    })) << call;
    return call;
  }
  Subprocess Shell(const std::string& commands) const {
    return Subprocess({.argv = {"/bin/sh", "-c", commands, "sh", directory_.path()}});
  }

  testing::TemporaryDirectory directory_;
  const std::string pipe_ = directory_.File("pipe");
};

TEST_F(FileCall, NamesWhatIsOpenedAndWhereThatIsMounted) {
  const Subprocess opens = Shell("exec cat $1/pipe");
  EXPECT_THAT(CallOf(opens, pipe_),
              AllOf(StartsWith("open"), HasSubstr(" of " + pipe_ + " on /"), EndsWith(")")));
}

TEST_F(FileCall, ResolvesAPathByTheDirectoryOfTheProcess) {
  const Subprocess opens = Shell("cd $1; exec cat ./pipe");
  EXPECT_THAT(CallOf(opens, "pipe"), HasSubstr(" of " + directory_.path() + "/./pipe on /"));
}

TEST_F(FileCall, NamesTheFileOfADescriptor) {
  const Subprocess reads = Shell("exec 3<>$1/pipe; exec cat <&3");
  EXPECT_THAT(CallOf(reads, pipe_), StartsWith("read of " + pipe_ + " on /"));
}

TEST_F(FileCall, IsNothingWhereNoFileIsWaitedFor) {
  const Subprocess sleeps({.argv = {"/bin/sleep", "1000"}});
  EXPECT_EQ(FileCallOf(sleeps.pid()), "");
  EXPECT_EQ(FileCallOf(1 << 30), "");
}

// The kernel waits in one of two ways, by whether its pages are used.
class FileWait : public ::testing::TestWithParam<HungFileSystem::Pages> {
 protected:
  void SetUp() override {
    if (!hung_.mounted()) GTEST_SKIP() << hung_.why_not();
  }
  // The process opens the file first, which takes a moment, too.
  std::string WaitToReadOf(pid_t pid) const {
    std::string wait;
    EXPECT_TRUE(WaitUntil([&] { return (wait = FileWaitOf(pid)).starts_with(in_words_); })) << wait;
    return wait;
  }

  testing::TemporaryDirectory directory_;
  HungFileSystem hung_{directory_.File("hung"), "data", "text", GetParam()};
  const std::string in_words_ = "read of " + hung_.file() + " on " + directory_.File("hung");
};

INSTANTIATE_TEST_SUITE_P(Pages, FileWait,
                         ::testing::Values(HungFileSystem::Pages::kUsed,
                                           HungFileSystem::Pages::kPassedBy));

TEST_P(FileWait, IsOfTheProcessUntilItIsAnswered) {
  Subprocess reads({.argv = {"/bin/cat", hung_.file()}});
  EXPECT_EQ(WaitToReadOf(reads.pid()), in_words_ + " (fuse)");
  const auto look = LookAtProcess(reads.pid(), MonoNow());
  EXPECT_TRUE(look && AwaitsFiles(*look));
  hung_.AnswerAgain();
  EXPECT_EQ(reads.Wait().out, "text");
}

TEST_P(FileWait, IsOfAProcessBelowIt) {
  Subprocess waits({.argv = {"/bin/sh", "-c", "cat $1; true", "sh", hung_.file()}});
  EXPECT_THAT(WaitToReadOf(waits.pid()), StartsWith(in_words_ + " (fuse) by its process "));
  EXPECT_TRUE(DoesTreeAwaitFiles(waits.pid(), MonoNow()));
  hung_.AnswerAgain();
  EXPECT_EQ(waits.Wait().out, "text");
}

TEST(FileWaitOf, IsNothingOfASleeper) {
  const Subprocess sleeps({.argv = {"/bin/sleep", "1000"}});
  // It reads its program first.
  std::string wait;
  EXPECT_TRUE(WaitUntil([&] { return (wait = FileWaitOf(sleeps.pid())).empty(); })) << wait;
  EXPECT_FALSE(DoesTreeAwaitFiles(sleeps.pid(), MonoNow()));
}

}  // namespace
}  // namespace muster::agent
