#include "proto/io/user_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kToken(kSecretHexDigits, 'c');

class UserSecretTest : public testing::Test {
 protected:
  UserSecretTest() {
    std::string path = testing::TempDir() + "/secretXXXXXX";
    home_ = mkdtemp(path.data());
  }
  ~UserSecretTest() override { std::filesystem::remove_all(home_); }

  std::string token_path() const { return home_ + "/.config/muster/token"; }
  std::string WriteToken(const std::string& text, mode_t mode) const {
    const std::string path = home_ + "/given";
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  mode_t ModeOf(const std::string& path) const {
    struct stat info;
    return stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
  }

  std::string home_;
};

TEST_F(UserSecretTest, IsMadeOnFirstUseAndKept) {
  const auto first = LoadUserSecret({.home = home_});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->origin, token_path());
  EXPECT_EQ(LoadUserSecret({.home = home_})->secret, first->secret);
}

TEST_F(UserSecretTest, IsReadableByItsOwnerOnly) {
  ASSERT_TRUE(LoadUserSecret({.home = home_}).ok());
  EXPECT_EQ(ModeOf(token_path()), 0600u);
  EXPECT_EQ(ModeOf(home_ + "/.config/muster"), 0700u);
}

TEST_F(UserSecretTest, IsTheSameForAllWhoStartTogether) {
  std::vector<std::string> secrets(8);
  std::vector<std::thread> threads;
  for (std::string& secret : secrets) {
    threads.emplace_back([&] { secret = LoadUserSecret({.home = home_}).value().secret; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(secrets.begin(), secrets.end()).size(), 1u);
}

TEST_F(UserSecretTest, LeavesNoTemporaryFile) {
  ASSERT_TRUE(LoadUserSecret({.home = home_}).ok());
  const std::filesystem::directory_iterator files(home_ + "/.config/muster");
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(UserSecretTest, ComesFromTheEnvironmentBeforeAnyFile) {
  const auto secret = LoadUserSecret({.token = kToken, .token_file = "/nowhere", .home = home_});
  ASSERT_TRUE(secret.ok()) << secret.status();
  EXPECT_EQ(secret->secret, kToken);
  EXPECT_FALSE(std::filesystem::exists(token_path()));
}

TEST_F(UserSecretTest, IsTheSameFromTheFileAndFromItsContentInTheEnvironment) {
  const std::string path = WriteToken(kToken + "\n", 0600);
  EXPECT_EQ(LoadUserSecret({.token_file = path})->secret,
            LoadUserSecret({.token = kToken})->secret);
}

TEST_F(UserSecretTest, IsRefusedWithTheCommandToRunWhenOthersMayReadIt) {
  const std::string path = WriteToken(kToken + "\n", 0644);
  const auto secret = LoadUserSecret({.token_file = path});
  EXPECT_EQ(secret.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(secret.status().message().find("chmod 600 " + path), absl::string_view::npos)
      << secret.status();
}

TEST_F(UserSecretTest, IsRefusedWhenItBelongsToSomebodyElse) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string path = WriteToken(kToken + "\n", 0600);
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  EXPECT_EQ(LoadUserSecret({.token_file = path}).status().code(),
            absl::StatusCode::kPermissionDenied);
}

// What it is to another user than root, to whom root's files are lent: in a container with a secret
// that is mounted with an fsGroup, and in a unit with LoadCredential=.
class LentSecretTest : public UserSecretTest {
 protected:
  static constexpr uid_t kUser = 12345;

  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  }
  absl::Status ReadBySomebodyElse(mode_t mode) const {
    const std::string path = WriteToken(kToken + "\n", mode);
    EXPECT_EQ(chown(path.c_str(), 0, kUser), 0);
    EXPECT_EQ(chmod(home_.c_str(), 0755), 0);
    EXPECT_EQ(setegid(kUser), 0);
    EXPECT_EQ(seteuid(kUser), 0);
    const absl::Status status = ReadSecretFile(path).status();
    EXPECT_EQ(seteuid(0), 0);
    EXPECT_EQ(setegid(0), 0);
    return status;
  }
};

TEST_F(LentSecretTest, IsTakenFromRootsFileThatTheGroupMayRead) {
  EXPECT_TRUE(ReadBySomebodyElse(0440).ok()) << ReadBySomebodyElse(0440);
}

TEST_F(LentSecretTest, IsRefusedWhenTheGroupMayWriteIt) {
  EXPECT_EQ(ReadBySomebodyElse(0660).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(LentSecretTest, IsRefusedWhenEverybodyMayReadIt) {
  EXPECT_EQ(ReadBySomebodyElse(0444).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(UserSecretTest, IsThirtyTwoBytesInAnyUsualForm) {
  const std::string base64(kSecretBase64Characters, 'Q');
  for (const std::string& token : {kToken, std::string(kSecretHexDigits, 'F'), base64, base64 + "=",
                                   "-_+/" + base64.substr(4)}) {
    EXPECT_TRUE(LoadUserSecret({.token = token}).ok()) << token;
  }
}

TEST_F(UserSecretTest, IsRefusedWithTheCommandThatMakesOneWhereAPersonHasThoughtOfIt) {
  for (const std::string& token :
       {std::string("short"),
        std::string("a secret that all users of the cluster do share, and long"),
        std::string("correct horse battery staple and some mores"), kToken.substr(1), kToken + "c",
        kToken.substr(1) + "g", std::string(16, 'a')}) {
    const absl::Status status = LoadUserSecret({.token = token}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << token;
    EXPECT_THAT(std::string(status.message()), HasSubstr("openssl rand -hex 32"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(token)));
  }
  EXPECT_EQ(LoadUserSecret({.token_file = WriteToken("\n", 0600)}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(UserSecretTest, IsNotMadeUpForAGivenFile) {
  EXPECT_EQ(LoadUserSecret({.token_file = home_ + "/absent"}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(UserSecretTest, IsRefusedWhenTheFileIsADirectoryOrAPipe) {
  EXPECT_FALSE(LoadUserSecret({.token_file = home_}).ok());
  const std::string pipe = home_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(LoadUserSecret({.token_file = pipe}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(UserSecretTest, NeedsAHomeThatCanBeWritten) {
  EXPECT_EQ(LoadUserSecret({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LoadUserSecret({.home = "/proc/self"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster
