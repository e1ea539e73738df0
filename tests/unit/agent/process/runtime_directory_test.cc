#include "agent/process/runtime_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "proto/io/unique_fd.h"
#include "tests/support/small_file_system.h"

namespace muster::agent {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class Directories : public ::testing::Test {
 protected:
  Directories() {
    std::string path = "/tmp/md_XXXXXX";
    root_ = mkdtemp(path.data());
  }
  ~Directories() override { fs::remove_all(root_); }

  std::string Make(const std::string& name, mode_t mode = 0700) {
    fs::create_directory(root_ + "/" + name);
    chmod((root_ + "/" + name).c_str(), mode);
    return root_ + "/" + name;
  }
  std::string Touch(const std::string& name) {
    std::ofstream(root_ + "/" + name) << "text";
    return root_ + "/" + name;
  }

  std::string root_;
};

using RuntimeDirectory = Directories;
using RunDirectory = Directories;
using RemoveOwned = Directories;

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(lstat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

template <typename T>
std::string Message(const absl::StatusOr<T>& result) {
  return std::string(result.status().message());
}

// A file system that is full; empty: none can be mounted here.
class FullPlace {
 public:
  explicit FullPlace(const std::string& path) : disk_(path, "64k") {
    if (!disk_.mounted()) return;
    std::ofstream(path + "/filler") << std::string(200'000, 'x');
  }
  bool is_full() const { return disk_.mounted(); }
  const std::string& why_not() const { return disk_.why_not(); }

 private:
  testing::SmallFileSystem disk_;
};

TEST_F(RuntimeDirectory, LiesBelowXdgRuntimeDirClosedToOthers) {
  const std::string xdg = Make("xdg");
  const auto path = MakeRuntimeDirectory({.xdg_runtime_dir = xdg, .temporary_places = {root_}});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, StartsWith(xdg + "/muster/"));
  EXPECT_EQ(ModeOf(*path), 0700u);
  EXPECT_EQ(ModeOf(xdg + "/muster"), 0700u);
}

TEST_F(RuntimeDirectory, IsADifferentOneForEachJob) {
  const RuntimeDirectoryOptions options{.xdg_runtime_dir = Make("xdg"),
                                        .temporary_places = {root_}};
  const auto first = MakeRuntimeDirectory(options);
  const auto second = MakeRuntimeDirectory(options);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
}

TEST_F(RuntimeDirectory, LiesBelowTheTemporaryDirectoryWithoutXdg) {
  const auto path = MakeRuntimeDirectory({.temporary_places = {root_}});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, MatchesRegex(root_ + "/muster-[A-Za-z0-9]+"));
}

TEST_F(RuntimeDirectory, KeepsItsModeUnderAnyUmask) {
  const mode_t before = umask(0777);
  const auto path = MakeRuntimeDirectory({.temporary_places = {root_}});
  umask(before);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(ModeOf(*path), 0700u);
}

TEST_F(RuntimeDirectory, PassesOverAnXdgDirectoryThatOthersMayEnter) {
  const auto path =
      MakeRuntimeDirectory({.xdg_runtime_dir = Make("xdg", 0755), .temporary_places = {root_}});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, StartsWith(root_ + "/muster-"));
}

TEST_F(RuntimeDirectory, PassesOverALinkThatWasLaidForIt) {
  const std::string xdg = Make("xdg");
  fs::create_directory_symlink(Make("elsewhere"), xdg + "/muster");
  const auto path = MakeRuntimeDirectory({.xdg_runtime_dir = xdg, .temporary_places = {root_}});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, StartsWith(root_ + "/muster-"));
  EXPECT_TRUE(fs::is_empty(root_ + "/elsewhere"));
}

TEST_F(RuntimeDirectory, LiesInTheNextPlaceWhereASocketsPathWouldBeTooLong) {
  const std::string deep = Make(std::string(100, 'd'));
  const auto path = MakeRuntimeDirectory({.temporary_places = {deep, root_}});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, StartsWith(root_ + "/muster-"));
  EXPECT_LE((*path + "/agent.sock").size(), kSocketPathBytesMax);
}

TEST_F(RuntimeDirectory, SaysWhatWasWrongWithEachPlace) {
  const std::string deep = Make(std::string(100, 'd'));
  const auto path = MakeRuntimeDirectory({.temporary_places = {deep, root_ + "/absent"}});
  EXPECT_EQ(path.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(path), HasSubstr("more than 107"));
  EXPECT_THAT(Message(path), HasSubstr(root_ + "/absent/muster-"));
  EXPECT_THAT(Message(path), HasSubstr("No such file or directory"));
}

TEST_F(RuntimeDirectory, LiesInTheNextPlaceWhereOneIsFull) {
  const FullPlace full(Make("full"));
  if (!full.is_full()) GTEST_SKIP() << full.why_not();
  const auto path = MakeRuntimeDirectory({.temporary_places = {root_ + "/full", root_}});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, StartsWith(root_ + "/muster-"));
  EXPECT_TRUE(fs::is_empty(*path));
  fs::directory_iterator left(root_ + "/full");
  EXPECT_EQ(std::distance(fs::begin(left), fs::end(left)), 1) << "the filler alone";
}

TEST(TemporaryPlaces, AreTmpdirThenTheUsualOnes) {
  EXPECT_THAT(TemporaryPlaces(""), ElementsAre("/tmp", "/var/tmp"));
  EXPECT_THAT(TemporaryPlaces("/scratch"), ElementsAre("/scratch", "/tmp", "/var/tmp"));
  EXPECT_THAT(TemporaryPlaces("/tmp/"), ElementsAre("/tmp/", "/var/tmp"));
}

TEST_F(RuntimeDirectory, IsNotPrivateIfItBelongsToAnother) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a directory away";
  const std::string foreign = Make("foreign");
  ASSERT_EQ(chown(foreign.c_str(), 12345, 12345), 0);
  EXPECT_THAT(std::string(CheckPrivateDirectory(foreign).message()),
              HasSubstr("belongs to uid 12345"));
}

TEST_F(RunDirectory, IsNamedAfterTheRunWithARandomEnd) {
  const auto path = MakeRunDirectory({.log_dir = root_ + "/logs", .run_id = "job7"});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(path->path, MatchesRegex(root_ + "/logs/job7_[A-Za-z0-9]+"));
  EXPECT_TRUE(fs::is_directory(path->path));
}

TEST_F(RunDirectory, GetsTheParentsItNeeds) {
  EXPECT_TRUE(MakeRunDirectory({.log_dir = root_ + "/a/b//c/", .run_id = "job7"}).ok());
  EXPECT_TRUE(fs::is_directory(root_ + "/a/b/c"));
}

TEST_F(RunDirectory, ReplacesUnusualCharactersOfTheRunId) {
  const auto path = MakeRunDirectory({.log_dir = root_, .run_id = "../a b/\xc3\xa4:c.d-e_f"});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(path->path, StartsWith(root_ + "/.._a_b____c.d-e_f_"));
}

TEST_F(RunDirectory, CutsARunIdThatIsTooLongForAName) {
  EXPECT_TRUE(MakeRunDirectory({.log_dir = root_, .run_id = std::string(5000, 'x')}).ok());
}

TEST_F(RunDirectory, LiesBelowTheTemporaryDirectoryWithoutALogDir) {
  const auto path = MakeRunDirectory({.run_id = "job7", .temporary_places = {root_}});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(path->path, MatchesRegex(root_ + "/muster_[A-Za-z0-9]+/job7_[A-Za-z0-9]+"));
}

TEST_F(RunDirectory, LiesInTheNextPlaceWhereTmpdirWillNotDo) {
  Touch("file");
  for (const char* name : {"/absent", "/file"}) {
    const std::string tmpdir = root_ + name;
    const auto path = MakeRunDirectory({.run_id = "job7", .temporary_places = {tmpdir, root_}});
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_THAT(path->path, StartsWith(root_ + "/muster_"));
    EXPECT_THAT(path->note, AllOf(StartsWith("directory for logs: cannot create " + tmpdir),
                                  HasSubstr("; this job's own files go to " + root_)));
  }
  EXPECT_EQ(MakeRunDirectory({.run_id = "job7", .temporary_places = {root_}})->note, "");
}

TEST_F(RunDirectory, LiesInTheNextPlaceWhereTmpdirIsFull) {
  const FullPlace full(Make("full"));
  if (!full.is_full()) GTEST_SKIP() << full.why_not();
  const auto path =
      MakeRunDirectory({.run_id = "job7", .temporary_places = {root_ + "/full", root_}});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(path->path, StartsWith(root_ + "/muster_"));
  EXPECT_THAT(path->note, HasSubstr("No space left on device"));
}

TEST_F(RunDirectory, NamesTmpdirWhereNoPlaceWillDo) {
  const auto path =
      MakeRunDirectory({.run_id = "job7", .temporary_places = {root_ + "/one", root_ + "/other"}});
  EXPECT_EQ(path.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(path), AllOf(HasSubstr(root_ + "/one"), HasSubstr(root_ + "/other"),
                                   EndsWith("; set TMPDIR to a directory that can be written")));
}

TEST_F(RunDirectory, SaysThatTheLogDirIsAFile) {
  const std::string file = Touch("file");
  const auto path = MakeRunDirectory({.log_dir = file, .run_id = "job7"});
  EXPECT_EQ(path.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(path), "--log_dir " + file + " is a file, not a directory");
}

TEST_F(RunDirectory, NamesAParentThatIsAFile) {
  const std::string file = Touch("file");
  const auto path = MakeRunDirectory({.log_dir = file + "/logs", .run_id = "job7"});
  EXPECT_EQ(path.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(path), "--log_dir " + file + "/logs: " + file + " is a file, not a directory");
}

TEST_F(RunDirectory, SaysInWordsWhyItCannotBeMade) {
  const auto path = MakeRunDirectory({.log_dir = "/proc/self/logs", .run_id = "job7"});
  EXPECT_FALSE(path.ok());
  EXPECT_EQ(Message(path), "--log_dir: cannot create /proc/self/logs: No such file or directory");
}

TEST_F(RemoveOwned, RemovesFilesSocketsAndWholeDirectories) {
  const std::string directory = Make("run");
  Make("run/sub");
  Touch("run/sub/board");
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (directory + "/agent.sock").copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  RemoveOwnedPath(directory);
  EXPECT_FALSE(fs::exists(fs::symlink_status(directory)));
  const std::string file = Touch("file");
  RemoveOwnedPath(file);
  EXPECT_FALSE(fs::exists(file));
}

TEST_F(RemoveOwned, RemovesALinkButNotWhatItPointsTo) {
  Make("outside");
  const std::string kept = Touch("outside/kept");
  const std::string directory = Make("run");
  fs::create_directory_symlink(root_ + "/outside", directory + "/link");
  fs::create_directory_symlink(root_ + "/outside", root_ + "/top_link");
  RemoveOwnedPath(directory);
  RemoveOwnedPath(root_ + "/top_link");
  EXPECT_FALSE(fs::exists(directory));
  EXPECT_FALSE(fs::exists(fs::symlink_status(root_ + "/top_link")));
  EXPECT_TRUE(fs::exists(kept));
}

TEST_F(RemoveOwned, LeavesWhatBelongsToAnother) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a file away";
  const std::string directory = Make("run");
  const std::string foreign = Touch("run/foreign");
  ASSERT_EQ(chown(foreign.c_str(), 12345, 12345), 0);
  RemoveOwnedPath(directory);
  EXPECT_TRUE(fs::exists(foreign));
}

TEST_F(RemoveOwned, IsContentWithWhatIsGoneAlready) { RemoveOwnedPath(root_ + "/absent"); }

}  // namespace
}  // namespace muster::agent
