// What surrounds a job misbehaves: guardians are stopped or killed, readers of logs go away,
// folders are cleaned up, limits are low, links are planted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/io/descriptors.h"
#include "proto/io/unique_fd.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/process_table.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

class BadNeighbours : public JobTest {
 protected:
  // A shell that has `commands` run before it becomes the program `rest`.
  Subprocess StartAfter(const std::string& commands, const Arguments& rest,
                        const Environment& changes = {}) const {
    return StartProgram(
        Arguments{"/bin/sh", "-c", absl::StrCat(commands, "; exec \"$@\""), "sh"} + rest, changes);
  }
  static pid_t GuardianOf(const Subprocess& agent) {
    for (const pid_t child : ChildrenOf(agent.pid())) {
      if (NameOf(child) == "muster-guardian") return child;
    }
    return -1;
  }
  Environment Token() const { return {{"MUSTER_TOKEN", std::string(64, 'a')}}; }
};

TEST_F(BadNeighbours, WhoKillAgentAndGuardianLeaveNothingBehindTheNextStart) {
  // Children in sessions of their own, which the parent-death signal does not reach.
  const std::string script = ShellScript("train.sh", R"(
for i in 1 2 3; do setsid sleep 1000 & done
touch $OUT/ready
wait)");
  Subprocess job = Start({"run", script});
  ASSERT_TRUE(WaitForOut("ready"));
  const pid_t guardian = GuardianOf(job);
  ASSERT_GT(guardian, 0);
  kill(guardian, SIGSTOP);  // or it would be quicker than the second signal
  kill(job.pid(), SIGKILL);
  kill(guardian, SIGKILL);
  job.Wait();
  ASSERT_FALSE(ProcessesWith(mark()).empty()) << "this test has nothing to show";
  const SubprocessResult next = Run({"run", ShellScript("next.sh", "exit 0")});
  EXPECT_THAT(next, ExitsWith(0));
  EXPECT_THAT(next.err, HasSubstr("3 processes"));
  EXPECT_TRUE(NothingIsLeft()) << Describe(ProcessesWith(mark()));
}

TEST_F(BadNeighbours, WhoStopTheGuardianDoNotKeepAJobFromEnding) {
  const std::string script = ShellScript("train.sh", R"(
touch $OUT/ready
while [ ! -e $OUT/go ]; do sleep 0.1; done)");
  Subprocess job = Start({"run", script});
  ASSERT_TRUE(WaitForOut("ready"));
  kill(GuardianOf(job), SIGSTOP);
  WriteFile(Out("go"), "");
  EXPECT_THAT(job.Wait(), ExitsWith(0));
}

TEST_F(BadNeighbours, WhoStopTheGuardianDoNotKeepWorkersAliveBehindAnInterrupt) {
  const std::string script = ShellScript("train.sh", "touch $OUT/ready\nexec sleep 1000");
  Subprocess job = Start({"run", script});
  ASSERT_TRUE(WaitForOut("ready"));
  kill(GuardianOf(job), SIGSTOP);
  job.Signal(SIGINT);
  EXPECT_THAT(job.Wait(), ExitsWith(130));
}

TEST_F(BadNeighbours, WhoCleanUpTheLogFolderDoNotEndAJobThatRestarts) {
  const std::string script = ShellScript("train.sh", R"(
[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0
rm -rf $OUT/../logs
exit 1)");
  const SubprocessResult result = Run({"run", "--max_restarts=1", "--tee=3",
                                       absl::StrCat("--log_dir=", directory(), "/logs"), script});
  EXPECT_THAT(result, ExitsWith(0));
}

TEST_F(BadNeighbours, AreALowLimitOnOpenFilesForThreeHundredWorkers) {
  const std::string script =
      ShellScript("train.sh", "[ $(ulimit -Sn) = 512 ] && echo $RANK >> $OUT/ranks");
  Subprocess job =
      StartAfter("ulimit -Sn 512", {MusterBinary(), "run", "--nproc_per_node=300", script});
  EXPECT_THAT(job.Wait(4 * kPatience), ExitsWith(0));
  const std::string ranks = ReadOut("ranks");
  EXPECT_EQ(std::count(ranks.begin(), ranks.end(), '\n'), 300) << "workers keep the limit";
}

TEST_F(BadNeighbours, AreALowHardLimitOnOpenFilesForThreeHundredWorkers) {
  const std::string script = ShellScript("train.sh", "echo $RANK >> $OUT/ranks");
  Subprocess job =
      StartAfter("ulimit -n 1024", {MusterBinary(), "run", "--nproc_per_node=300", script});
  EXPECT_THAT(job.Wait(4 * kPatience), ExitsWith(0));
  const std::string ranks = ReadOut("ranks");
  EXPECT_EQ(std::count(ranks.begin(), ranks.end(), '\n'), 300);
}

TEST_F(BadNeighbours, AreANetworkWithoutARouteToItself) {
  if (geteuid() != 0) GTEST_SKIP() << "a network namespace needs root";
  Subprocess job = StartProgram(
      {"/usr/bin/unshare", "--net", MusterBinary(), "run", ShellScript("train.sh", "exit 0")});
  EXPECT_THAT(job.Wait(), ExitsWith(0));
}

// Connections to a port of 127.0.0.1 that say nothing.
class SilentCrowd {
 public:
  SilentCrowd(int port, int size) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < size; ++i) {
      sockets_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      ::connect(sockets_.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    }
  }

 private:
  std::vector<UniqueFd> sockets_;
};

TEST_F(BadNeighbours, MayBeACrowdOnThePortOfARunningJob) {
  RaiseDescriptorLimit();
  const LoopbackPort port;
  // Fails once the crowd is there, and must be started again.
  const std::string script = ShellScript("train.sh", R"(
[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0
touch $OUT/ready.$RANK
while [ ! -e $OUT/go ]; do sleep 0.1; done
exit 1)");
  std::vector<Subprocess> agents;
  for (const char* node : {"127.0.0.1", "127.0.0.2"}) {
    agents.push_back(
        StartAfter("ulimit -n 1024",
                   {MusterBinary(), "run", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=crowded",
                    "--max_restarts=1", absl::StrCat("--rdzv_endpoint=127.0.0.1:", port.number()),
                    absl::StrCat("--local_addr=", node), script}));
  }
  ASSERT_TRUE(WaitForOut("ready.0") && WaitForOut("ready.1"));
  const SilentCrowd crowd(port.number(), 1100);
  WriteFile(Out("go"), "");
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(), ExitsWith(0));
}

class BadNeighboursOfMusterd : public BadNeighbours {
 protected:
  std::string PortFile() const { return directory() + "/port"; }
  bool Listens() const {
    return WaitUntil([&] { return absl::StrContains(ReadFile(PortFile()), "\n"); });
  }
  // Two nodes that meet at the musterd whose port is in PortFile().
  void ExpectThatItServes() {
    const std::string port(absl::StripAsciiWhitespace(ReadFile(PortFile())));
    const std::string script = ShellScript("train.sh", "exit 0");
    std::vector<Subprocess> agents;
    for (const char* node : {"127.0.0.1", "127.0.0.2"}) {
      agents.push_back(
          Start({"run", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=served",
                 "--rdzv_endpoint=127.0.0.1:" + port, absl::StrCat("--local_addr=", node), script},
                Token()));
    }
    for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(), ExitsWith(0));
  }
  Arguments Musterd() const {
    return {MusterdBinary(), "--listen=127.0.0.1:0", "--port_file=" + PortFile()};
  }
};

TEST_F(BadNeighboursOfMusterd, MayBeACrowdBeforeAgentsCome) {
  RaiseDescriptorLimit();
  Subprocess daemon = StartAfter("ulimit -n 1024", Musterd(), Token());
  ASSERT_TRUE(Listens());
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadFile(PortFile())), &port));
  const SilentCrowd crowd(port, 1100);
  ExpectThatItServes();
  EXPECT_TRUE(daemon.WaitForOutput("job served")) << "lines name their job";
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(), ExitsWith(0));
}

TEST_F(BadNeighboursOfMusterd, AreNamedInItsLogWhenTheyHoldAnotherSecret) {
  Subprocess daemon = StartProgram(Musterd(), Token());
  ASSERT_TRUE(Listens());
  const std::string port(absl::StripAsciiWhitespace(ReadFile(PortFile())));
  Subprocess agent = Start({"run", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=served",
                            "--rdzv_endpoint=127.0.0.1:" + port, ShellScript("train.sh", "exit 0")},
                           {{"MUSTER_TOKEN", std::string(64, 'b')}});
  EXPECT_THAT(agent.Wait(), ExitsWith(3));
  EXPECT_TRUE(daemon.WaitForOutput("refused a connection from 127.0.0.1:"));
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(), ExitsWith(0));
}

TEST_F(BadNeighboursOfMusterd, MayBeAReaderOfItsLogThatGoesAway) {
  // What it prints goes to a program that has ended.
  Subprocess daemon = StartProgram(
      Arguments{"/bin/sh", "-c", "{ exec \"$@\"; } 2>&1 | true", "sh"} + Musterd(), Token());
  ASSERT_TRUE(Listens());
  ExpectThatItServes();
  ExpectThatItServes();
  for (const pid_t pid : ProcessesWith(mark())) {
    if (NameOf(pid) == "musterd") kill(pid, SIGTERM);
  }
  EXPECT_TRUE(daemon.Wait().ended);
}

TEST_F(BadNeighboursOfMusterd, MayBeClosedStandardStreams) {
  Subprocess daemon = StartAfter("exec 0<&- 1>&- 2>&-", Musterd(), Token());
  ASSERT_TRUE(Listens());
  ExpectThatItServes();
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(), ExitsWith(0));
}

TEST_F(BadNeighboursOfMusterd, MayHavePlantedLinksWhereItsPortFileGoes) {
  const std::string victim = directory() + "/victim";
  WriteFile(victim, "precious");
  std::filesystem::create_symlink(victim, PortFile());
  std::filesystem::create_symlink(victim, PortFile() + ".new");
  Subprocess daemon = StartProgram(Musterd(), Token());
  ASSERT_TRUE(daemon.WaitForOutput("listening"));
  EXPECT_EQ(ReadFile(victim), "precious");
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(), ExitsWith(0));
}

TEST_F(BadNeighboursOfMusterd, AreToldOfWhenTheyLeaveItNoThreads) {
  if (geteuid() != 0) GTEST_SKIP() << "needs a user of its own";
  // Another user may not enter the folders that the build lies in.
  const TemporaryDirectory programs;
  std::filesystem::permissions(programs.path(), std::filesystem::perms(0755));
  for (const std::string& binary : {MusterBinary(), MusterdBinary()}) {
    const std::filesystem::path name = std::filesystem::path(binary).filename();
    std::filesystem::copy_file(binary, programs.File(name));
  }
  // The limit does not hold for root.
  Subprocess daemon =
      StartProgram({"/usr/bin/prlimit", "--nproc=3", "/usr/bin/setpriv", "--reuid=54321",
                    "--clear-groups", programs.File("musterd"), "--listen=127.0.0.1:0"},
                   Token());
  const SubprocessResult result = daemon.Wait();
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("ulimit -u"));
}

}  // namespace
}  // namespace muster::testing
