// musterd as its unit runs it, in namespaces that do the same: a user and a /tmp of its own. The
// agents of the machine see the mark that keeps its port.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"

namespace muster::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kDynamicUser = 61234;

class Service : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (geteuid() != 0) GTEST_SKIP() << "namespaces of mounts and other users need root";
    ASSERT_EQ(mkdir(Run().c_str(), 0755), 0);
    ASSERT_EQ(mkdir(State().c_str(), 0700), 0);
    ASSERT_EQ(chown(State().c_str(), kDynamicUser, kDynamicUser), 0);
    if (!Start("true", {"/bin/true"}).Wait().ended) GTEST_SKIP() << "no namespace of mounts";
  }

  std::string Run() const { return directory() + "/run"; }
  std::string State() const { return directory() + "/state"; }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_.number()); }
  int port() const { return port_.number(); }

  // Starts as on a machine with a /run of its own, where `commands` are run first.
  Subprocess Start(const std::string& commands, const Arguments& argv) const {
    return StartProgram(
        Arguments{"/usr/bin/unshare", "--mount", "/bin/sh", "-c",
                  absl::StrCat("mount --bind ", Run(), " /run && ", commands, " && exec \"$@\""),
                  "sh"} +
            argv,
        {{"MUSTER_TOKEN", std::string(64, 'a')}, {"STATE_DIRECTORY", State()}});
  }
  // The unit's DynamicUser, PrivateTmp and UMask. The programs may lie in a folder that this user
  // may not enter, or in the /tmp that it does not see.
  Subprocess StartService(const std::string& commands = "true") const {
    return Start(absl::StrCat("mount -t tmpfs -o mode=0755 none /mnt && cp ", MusterBinary(), " ",
                              MusterdBinary(), " /mnt && chmod 0755 /mnt/* && ",
                              "mount -t tmpfs -o mode=1777 none /tmp && ", commands,
                              " && cd / && umask 0077"),
                 {"/usr/bin/setpriv", absl::StrCat("--reuid=", kDynamicUser),
                  absl::StrCat("--regid=", kDynamicUser), "--clear-groups", "/mnt/musterd",
                  "--listen=" + endpoint()});
  }
  Subprocess StartAgent(int node, const std::string& script) const {
    return Start("true", {MusterBinary(), "run", "--nnodes=2", "--rdzv_backend=c10d",
                          "--rdzv_id=served", "--rdzv_endpoint=" + endpoint(),
                          absl::StrCat("--local_addr=127.0.0.", node), script});
  }
  static std::vector<std::string> LinesOfUnit() {
    return absl::StrSplit(
        ReadFile(absl::StrCat(kSourceDirectory, "/deploy/systemd/musterd.service")), '\n');
  }

 private:
  LoopbackPort port_;
};

TEST_F(Service, AgentsKeepThePortForADaemonThatWasKilled) {
  const std::vector<std::string> unit = LinesOfUnit();
  for (const char* setting : {"DynamicUser=yes", "PrivateTmp=yes", "UMask=0077"}) {
    ASSERT_THAT(unit, Contains(setting)) << "what this test does by hand";
  }
  for (absl::string_view line : unit) {
    if (!absl::ConsumePrefix(&line, "ExecStartPre=+")) continue;
    ASSERT_THAT(Start(std::string(line), {"/bin/true"}).Wait(), ExitsWith(0)) << line;
  }
  std::optional<Subprocess> daemon(StartService());
  ASSERT_TRUE(daemon->WaitForOutput("listening")) << ToString(daemon->Wait());
  daemon->Signal(SIGKILL);
  daemon->Wait();
  const std::string script = ShellScript("train.sh", "exit 0");
  Subprocess one = StartAgent(1, script);
  EXPECT_TRUE(one.WaitForOutput("for it to be started again")) << ToString(one.Wait());
  daemon.emplace(StartService());
  ASSERT_TRUE(daemon->WaitForOutput("listening")) << ToString(daemon->Wait());
  Subprocess other = StartAgent(2, script);
  EXPECT_THAT(one.Wait(), ExitsWith(0));
  EXPECT_THAT(other.Wait(), ExitsWith(0));
  daemon->Signal(SIGTERM);
  EXPECT_THAT(daemon->Wait(), ExitsWith(0));
  EXPECT_THAT(FilesBelow(Run()), ::testing::IsEmpty()) << "a clean end takes the mark along";
}

TEST_F(Service, AFolderThatOthersCanWriteToIsNotHeeded) {
  ASSERT_EQ(mkdir((Run() + "/musterd").c_str(), 0755), 0);
  ASSERT_EQ(chmod((Run() + "/musterd").c_str(), 0777), 0);
  Subprocess daemon = StartService();
  ASSERT_TRUE(daemon.WaitForOutput("listening")) << ToString(daemon.Wait());
  EXPECT_THAT(FilesBelow(Run()), ::testing::IsEmpty());
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(), ExitsWith(0));
}

TEST_F(Service, AMarkThatAnotherUserHasPlantedIsSaid) {
  Subprocess daemon = StartService(absl::StrCat("touch /tmp/.musterd-", kDynamicUser,
                                                "-$(stat -L -c %i /proc/self/ns/net)-", port()));
  EXPECT_TRUE(daemon.WaitForOutput("is another user's or cannot be written"))
      << ToString(daemon.Wait());
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(), ExitsWith(0));
}

// In /tmp, another user could make the mark first and keep root's from being made.
TEST_F(Service, AMarkOfRootsLiesWhereNobodyElseCanMakeIt) {
  Subprocess daemon = Start("true", {MusterdBinary(), "--listen=" + endpoint()});
  ASSERT_TRUE(daemon.WaitForOutput("listening")) << ToString(daemon.Wait());
  EXPECT_THAT(FilesBelow(Run()), ::testing::SizeIs(1));
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(), ExitsWith(0));
  EXPECT_FALSE(FileExists(Run() + "/musterd"));
}

// The test is the service manager: it keeps the listening socket, and passes it as systemd does.
class PassedPort : public JobTest {
 protected:
  PassedPort() { ::fcntl(port_.descriptor(), F_SETFD, 0); }

  bool SomebodyWaits() const {
    pollfd look{.fd = port_.descriptor(), .events = POLLIN};
    return ::poll(&look, 1, 0) == 1;
  }
  Subprocess StartDaemon() const {
    return StartProgram(
        {"/bin/bash", "-c",
         absl::StrCat("exec 3<&", port_.descriptor(), " && LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\""),
         "bash", MusterdBinary(), "--listen=127.0.0.1:1"},
        environment());
  }
  Subprocess StartAgent() const {
    return StartProgram({MusterBinary(), "run", "--nnodes=2", "--rdzv_backend=c10d",
                         "--rdzv_id=passed", "--rdzv_endpoint=" + endpoint_, "--no_python", "true"},
                        environment());
  }
  static Environment environment() { return {{"MUSTER_TOKEN", std::string(64, 'a')}}; }

  const LoopbackPort port_{PortUse::kListening};
  const std::string endpoint_ = absl::StrCat("127.0.0.1:", port_.number());
};

TEST_F(PassedPort, LetsAgentsWaitWhileTheDaemonIsStartedAgain) {
  std::optional<Subprocess> daemon(StartDaemon());
  ASSERT_TRUE(daemon->WaitForOutput(
      absl::StrCat("listening on ", endpoint_, ", a socket of the service manager\n")))
      << ToString(daemon->Wait());
  daemon->Signal(SIGKILL);
  daemon->Wait();
  Subprocess one = StartAgent();
  Subprocess other = StartAgent();
  EXPECT_TRUE(WaitUntil([&] { return SomebodyWaits(); }));
  daemon.emplace(StartDaemon());
  EXPECT_THAT(one.Wait(), ExitsWith(0));
  EXPECT_THAT(other.Wait(), ExitsWith(0));
  daemon->Signal(SIGTERM);
  EXPECT_THAT(daemon->Wait(), ExitsWith(0));
}

}  // namespace
}  // namespace muster::testing
