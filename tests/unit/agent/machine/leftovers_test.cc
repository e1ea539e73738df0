#include "agent/machine/leftovers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "agent/process/runtime_directory.h"
#include "tests/support/files.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Leftovers : public ::testing::Test {
 protected:
  // A runtime directory as an agent makes it.
  std::string Directory() {
    auto path = MakeRuntimeDirectory({.temporary_places = {place_.path()}});
    EXPECT_TRUE(path.ok()) << path.status();
    return path.value_or("");
  }
  std::vector<std::string> End() { return EndLeftovers({place_.path() + "/muster-"}); }
  // A process that a worker of the job in `directory` had started.
  pid_t StartProcessOf(const std::string& directory) {
    const std::string socket = absl::StrCat("MUSTER_AGENT_SOCKET=", directory, "/agent.sock");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setsid();
      const char* const argv[] = {"sleep", "1000", nullptr};
      const char* const environment[] = {socket.c_str(), nullptr};
      ::execve("/bin/sleep", const_cast<char**>(argv), const_cast<char**>(environment));
      ::_exit(127);
    }
    // The environment is the program's once it runs.
    const std::string environ = absl::StrCat("/proc/", pid, "/environ");
    EXPECT_TRUE(Await(environ, socket));
    return pid;
  }
  static bool Await(const std::string& path, const std::string& text) {
    for (int i = 0; i < 10000; ++i) {
      if (muster::testing::ReadFile(path).find(text) != std::string::npos) return true;
      ::usleep(1000);
    }
    return false;
  }
  static bool WasKilled(pid_t pid) {
    int status = 0;
    return ::waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

  muster::testing::TemporaryDirectory place_;
};

TEST_F(Leftovers, OfADeadJobAreEndedAndItsDirectoryGoes) {
  const std::string directory = Directory();
  { const auto lock = LockRuntimeDirectory(directory); }  // its agent is dead
  const pid_t pid = StartProcessOf(directory);
  EXPECT_THAT(End(), ElementsAre(HasSubstr(absl::StrCat("1 process (pid ", pid, ")"))));
  EXPECT_TRUE(WasKilled(pid));
  EXPECT_FALSE(muster::testing::FileExists(directory));
}

TEST_F(Leftovers, OfALivingJobAreNone) {
  const std::string directory = Directory();
  const auto lock = LockRuntimeDirectory(directory);
  ASSERT_TRUE(lock.ok()) << lock.status();
  const pid_t pid = StartProcessOf(directory);
  EXPECT_THAT(End(), IsEmpty());
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0) << "it lives";
  EXPECT_TRUE(muster::testing::FileExists(directory));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST_F(Leftovers, AreNotLookedForInDirectoriesThatAreNotPrivateOrHaveNoLock) {
  const std::string open = Directory(), without = Directory();
  { const auto lock = LockRuntimeDirectory(open); }
  ::chmod(open.c_str(), 0755);
  EXPECT_THAT(End(), IsEmpty());
  EXPECT_TRUE(muster::testing::FileExists(open));
  EXPECT_TRUE(muster::testing::FileExists(without));
}

}  // namespace
}  // namespace muster::agent
