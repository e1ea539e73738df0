// What the log folder opens where somebody has cleaned it away, and has put something else in its
// place.
#include "agent/console/log_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/files.h"
#include "tests/support/small_file_system.h"

namespace muster::agent {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class LogFolderTest : public ::testing::Test {
 protected:
  LogFolderTest() {
    fs::create_directories(above_ + "/ours/run");
    folder_ = LogFolder(above_ + "/ours/run", above_ + "/ours");
  }
  std::string Ours(const std::string& name) const { return above_ + "/ours/" + name; }
  static mode_t ModeOf(const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::lstat(path.c_str(), &info), 0);
    return info.st_mode & 07777;
  }
  absl::Status OpenLog() const {
    return folder_.OpenFile(Ours("run/attempt_1/0/stdout.log"), O_WRONLY | O_CREAT).status();
  }

  const testing::TemporaryDirectory directory_;
  const std::string above_ = directory_.File("above");
  const std::string elsewhere_ = directory_.File("elsewhere");
  LogFolder folder_{""};
};

TEST_F(LogFolderTest, MakesWhatIsMissing) {
  EXPECT_TRUE(OpenLog().ok());
  EXPECT_TRUE(fs::exists(Ours("run/attempt_1/0/stdout.log")));
}

TEST_F(LogFolderTest, IsMadeAgainForUsAloneWhereItWasCleanedAway) {
  fs::remove_all(above_);
  EXPECT_TRUE(OpenLog().ok());
  EXPECT_EQ(ModeOf(above_ + "/ours"), 0700u);
}

TEST_F(LogFolderTest, SaysWhyAFileCannotGrow) {
  EXPECT_EQ(folder_.WhyFull(Ours("run")), "");
  EXPECT_TRUE(fs::is_empty(Ours("run")));
  EXPECT_EQ(folder_.WhyFull(Ours("run/absent")), "");
  EXPECT_FALSE(fs::exists(Ours("run/absent")));
  const testing::SmallFileSystem small(Ours("run/full"), "16k");
  if (!small.mounted()) GTEST_SKIP() << small.why_not();
  EXPECT_EQ(folder_.WhyFull(Ours("run/full")), "");
  small.Fill();
  EXPECT_EQ(folder_.WhyFull(Ours("run/full")), "No space left on device");
}

TEST_F(LogFolderTest, MayLieBehindALinkThatTheUserNamed) {
  fs::rename(above_, elsewhere_);
  fs::create_directory_symlink(elsewhere_, above_);
  EXPECT_TRUE(OpenLog().ok());
  EXPECT_TRUE(fs::exists(elsewhere_ + "/ours/run/attempt_1/0/stdout.log"));
}

TEST_F(LogFolderTest, FollowsNoLinkInItsPlace) {
  fs::remove_all(above_ + "/ours");
  fs::create_directories(elsewhere_ + "/run");
  fs::create_directory_symlink(elsewhere_, above_ + "/ours");
  const absl::Status status = OpenLog();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it is a link"));
  EXPECT_TRUE(fs::is_empty(elsewhere_ + "/run"));
}

TEST_F(LogFolderTest, FollowsNoLinkBelowIt) {
  fs::create_directories(elsewhere_);
  fs::create_directory_symlink(elsewhere_, Ours("run/attempt_1"));
  EXPECT_FALSE(OpenLog().ok());
  fs::remove(Ours("run/attempt_1"));
  fs::create_directories(Ours("run/attempt_1/0"));
  testing::WriteFile(elsewhere_ + "/precious", "precious");
  fs::create_symlink(elsewhere_ + "/precious", Ours("run/attempt_1/0/stdout.log"));
  EXPECT_FALSE(OpenLog().ok());
  EXPECT_EQ(testing::ReadFile(elsewhere_ + "/precious"), "precious");
}

TEST_F(LogFolderTest, TakesNoFolderOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make another user's folder";
  fs::remove_all(above_ + "/ours");
  fs::create_directories(Ours("run/attempt_1/0"));
  ASSERT_EQ(::chown((above_ + "/ours").c_str(), 54321, 54321), 0);
  const absl::Status status = OpenLog();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to uid 54321"));
  EXPECT_FALSE(fs::exists(Ours("run/attempt_1/0/stdout.log")));
}

}  // namespace
}  // namespace muster::agent
