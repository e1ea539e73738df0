// `muster run --hostfile` with real ssh: hosts are sshd processes on loopback ports with throw-away
// keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/hosts/remote_start.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/peer_python.h"
#include "tests/support/peer_record.h"
#include "tests/support/process_table.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr char kSshd[] = "/usr/sbin/sshd";

class HostsTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    for (const char* program : {kSshd, "/usr/bin/ssh", "/usr/bin/ssh-keygen"}) {
      if (access(program, X_OK) != 0) GTEST_SKIP() << program << " is not installed";
    }
    if (geteuid() != 0) GTEST_SKIP() << "sshd of Debian wants its /run/sshd, which only root makes";
    ASSERT_EQ(std::system("install -d -m 755 /run/sshd"), 0);
    for (const char* key : {"host_key", "user_key", "other_key"}) MakeKey(key);
    WriteFile(File("authorized_keys"), ReadFile(File("user_key.pub")));
    for (std::unique_ptr<LoopbackPort>* port : {&port_a_, &port_b_}) {
      *port = std::make_unique<LoopbackPort>();
      StartSshd((*port)->number());
    }
    WriteSshConfig();
    WriteFile(File("hosts"), "a slots=2\nb slots=1\n");
  }

  void TearDown() override {
    daemons_.clear();
    JobTest::TearDown();
  }

  std::string File(const std::string& name) const { return directory() + "/" + name; }

  void MakeKey(const std::string& name) const {
    StartProgram({"/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", File(name)}).Wait();
  }

  void StartSshd(int port) {
    const std::string conf = File(absl::StrCat("sshd.", port));
    WriteFile(conf, absl::StrCat("Port ", port, "\nListenAddress 127.0.0.1\nHostKey ",
                                 File("host_key"), "\nAuthorizedKeysFile ", File("authorized_keys"),
                                 "\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n"
                                 "PasswordAuthentication no\nAcceptEnv *\n"));
    // sshd does not have the mark of the job: it ends with this test.
    daemons_.push_back(std::make_unique<Subprocess>(SubprocessOptions{
        .argv = {kSshd, "-D", "-e", "-f", conf}, .environment = {{"PATH", "/usr/bin:/bin"}}}));
    EXPECT_TRUE(daemons_.back()->WaitForOutput("Server listening"));
  }

  // Hosts a, b and f are there; c has nobody who listens; d is asked with another key; e has a key
  // that is not known. On f a variable makes each line one that is refused.
  void WriteSshConfig() {
    WriteFile(File("known_hosts"), absl::StrCat("known ", ReadFile(File("host_key.pub"))));
    WriteFile(File("no_hosts"), "");
    nobody_ = std::make_unique<LoopbackPort>();
    std::string text;
    const auto add = [&](const char* host, int port, const char* key, const char* known) {
      absl::StrAppend(&text, "Host ", host, "\n  HostName 127.0.0.1\n  Port ", port,
                      "\n  IdentityFile ", File(key), "\n  UserKnownHostsFile ", File(known),
                      "\n  HostKeyAlias known\n");
    };
    add("a", port_a_->number(), "user_key", "known_hosts");
    add("b", port_b_->number(), "user_key", "known_hosts");
    add("c", nobody_->number(), "user_key", "known_hosts");
    add("d", port_b_->number(), "other_key", "known_hosts");
    add("e", port_b_->number(), "user_key", "no_hosts");
    add("f", port_b_->number(), "user_key", "known_hosts");
    absl::StrAppend(&text, "  SetEnv PET_MAX_RESTARTS=many\n");
    absl::StrAppend(
        &text,
        "Host *\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        "  GlobalKnownHostsFile /dev/null\n  LogLevel ERROR\n"
        "  SendEnv JOB_UNDER_TEST OUT TMPDIR FAKE_NVML ASAN_OPTIONS UBSAN_OPTIONS LSAN_OPTIONS\n");
    WriteFile(File("ssh_config"), text);
  }

  Subprocess StartOn(const std::string& hosts, const Arguments& arguments) {
    return Start(Arguments{"--hostfile=" + hosts, "--ssh_config=" + File("ssh_config"),
                           absl::StrCat("--master_port=", meeting_.number())} +
                 arguments);
  }

  // ssh's client of one host, as a child of the launcher.
  pid_t SshOf(const Subprocess& launcher, const std::string& host) const {
    for (const pid_t child : ChildrenOf(launcher.pid())) {
      if (absl::StrContains(Describe({child}), absl::StrCat("-- ", host, " "))) return child;
    }
    return -1;
  }

  LoopbackPort meeting_;
  std::unique_ptr<LoopbackPort> port_a_, port_b_, nobody_;
  std::vector<std::unique_ptr<Subprocess>> daemons_;
};

TEST_F(HostsTest, StartsAnAgentOnEachHostAndPassesEveryByteOn) {
  const std::string script = ShellScript(
      "worker",
      "echo \"worker $RANK of $WORLD_SIZE $CROSS_RANK/$CROSS_SIZE $LOCAL_SIZE in $(pwd) with $*\"\n"
      "echo \"secret: $MUSTER_TOKEN\"");
  const SubprocessResult result =
      StartOn(File("hosts"), {script, "$(touch pwned)", "a 'b' \"c\"", "--", "-x;y"}).Wait();
  EXPECT_THAT(result, ExitsWith(0));
  const std::string behind = absl::StrCat("in ", directory(), " with --local_rank=");
  EXPECT_THAT(result.out, HasSubstr(absl::StrCat("[a:0] worker 0 of 3 0/2 2 ", behind,
                                                 "0 $(touch pwned) a 'b' \"c\" -- -x;y\n")));
  EXPECT_THAT(result.out, HasSubstr(absl::StrCat("[a:1] worker 1 of 3 0/2 2 ", behind, "1 ")));
  EXPECT_THAT(result.out, HasSubstr(absl::StrCat("[b:2] worker 2 of 3 1/2 1 ", behind, "0 ")));
  EXPECT_THAT(result.out, HasSubstr("secret: \n"));
  EXPECT_FALSE(FileExists(File("pwned")));
}

TEST_F(HostsTest, TheDoctorLooksAtEachHost) {
  const SubprocessResult result =
      StartProgram({MusterBinary(), "doctor", "--hostfile=" + File("hosts"),
                    "--ssh_config=" + File("ssh_config"),
                    absl::StrCat("--master_port=", meeting_.number())})
          .Wait();
  const std::vector<std::string> parts = absl::StrSplit(result.out, ": limits: ");
  EXPECT_EQ(parts.size(), 3u) << "once for each\n" << ToString(result);
  EXPECT_THAT(result.out, HasSubstr(": bandwidth: "));
}

TEST_F(HostsTest, TheCodeOfTheRootCauseIsTheLaunchersAndIsPrintedOnce) {
  const std::string script = ShellScript("worker", "[ $RANK = 2 ] && exit 9; exec sleep 60");
  const SubprocessResult result = StartOn(File("hosts"), {script}).Wait();
  EXPECT_THAT(result, ExitsWith(9));
  const std::vector<std::string> parts = absl::StrSplit(result.err, "Root Cause");
  EXPECT_EQ(parts.size(), 2u) << ToString(result);
  EXPECT_THAT(result.err, HasSubstr("a stopped because rank 2 on b exited with code 9"));
}

TEST_F(HostsTest, AHostThatCannotBeReachedIsNamedWithTheReasonOfSsh) {
  const std::string script = ShellScript("worker", "exec sleep 60");
  const std::pair<const char*, const char*> hosts[] = {{"c", "Connection refused"},
                                                       {"d", "Permission denied"},
                                                       {"e", "Host key verification failed"}};
  for (const auto& [host, reason] : hosts) {
    WriteFile(File("some"), absl::StrCat("a slots=1\n", host, " slots=1\n"));
    const SubprocessResult result = StartOn(File("some"), {script}).Wait();
    EXPECT_THAT(result, ExitsWith(4));
    EXPECT_THAT(result.err, HasSubstr(absl::StrCat("cannot start an agent on ", host, ": ")));
    EXPECT_THAT(result.err, HasSubstr(reason));
    EXPECT_TRUE(NothingIsLeft());
  }
}

TEST_F(HostsTest, AHostWhoseAgentRefusesItsLineEndsTheJob) {
  WriteFile(File("some"), "a slots=1\nf slots=1\n");
  const SubprocessResult result =
      StartOn(File("some"), {ShellScript("worker", "exec sleep 60")}).Wait();
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("PET_MAX_RESTARTS=many: expected"));
  EXPECT_THAT(result.err, HasSubstr("the agent on f exited with 2, and the job needs all of its 2 "
                                    "hosts; stopping the others"));
}

// The first host that hears of it ends the job, so the others' workers may see SIGTERM.
TEST_F(HostsTest, AnInterruptEndsAllHostsWithTheirGrace) {
  const std::string script =
      ShellScript("worker",
                  "trap 'touch \"$OUT/interrupted.$RANK\"; exit 0' INT TERM\n"
                  "touch \"$OUT/up.$RANK\"\nwhile :; do sleep 0.1; done");
  Subprocess job = StartOn(File("hosts"), {script});
  for (const char* up : {"up.0", "up.1", "up.2"}) ASSERT_TRUE(WaitForOut(up));
  job.Signal(SIGINT);
  EXPECT_THAT(job.Wait(), ExitsWith(130));
  for (const char* name : {"interrupted.0", "interrupted.1", "interrupted.2"}) {
    EXPECT_TRUE(FileExists(Out(name))) << name;
  }
}

TEST_F(HostsTest, ALostConnectionAloneEndsNothing) {
  const std::string script = ShellScript(
      "worker",
      "touch \"$OUT/up.$RANK\"\nwhile ! [ -e \"$OUT/go\" ]; do echo tick; sleep 0.1; done\n"
      "touch \"$OUT/done.$RANK\"");
  Subprocess job = StartOn(File("hosts"), {script});
  for (const char* up : {"up.0", "up.1", "up.2"}) ASSERT_TRUE(WaitForOut(up));
  const pid_t ssh = SshOf(job, "b");
  ASSERT_GT(ssh, 0);
  kill(ssh, SIGKILL);
  ASSERT_TRUE(job.WaitForOutput("lost the connection to b"));
  WriteFile(Out("go"), "");
  EXPECT_THAT(job.Wait(), ExitsWith(0));
  for (const char* name : {"done.0", "done.1", "done.2"}) EXPECT_TRUE(WaitForOut(name)) << name;
}

TEST_F(HostsTest, OneHostNeedsNoMeetingPlace) {
  const std::string script = ShellScript("worker", "echo worker $RANK of $WORLD_SIZE");
  const SubprocessResult result =
      Start({"--hostfile=" + File("hosts"), "--ssh_config=" + File("ssh_config"), "--include=b",
             "--no_local_rank", script})
          .Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(result.out, "worker 0 of 1\n");
}

// The real `deepspeed` starts its hosts by pdsh. Both find an `ssh` that knows the test's hosts.
TEST_F(HostsTest, DeepSpeedsLinesStartTheWorkersThatItStarts) {
  ShellScript("ssh", absl::StrCat("exec /usr/bin/ssh -F ", File("ssh_config"), " \"$@\""));
  std::filesystem::create_symlink(Built("libfake_nvml.so"), File("libnvidia-ml.so.1"));
  const Environment environment = {{"PATH", directory() + ":/usr/bin:/bin"},
                                   {"LD_LIBRARY_PATH", directory()},
                                   {"FAKE_NVML", "num_gpus=2"}};
  const std::string script = PythonScript("show.py", R"(import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE",
         "CUDA_VISIBLE_DEVICES")
with open(f"{sys.argv[-1]}.{os.environ['RANK']}", "w") as file:
    print(sys.argv[1:-1], *(f"{name}={os.environ.get(name)}" for name in names), file=file)
)");
  const std::string port = absl::StrCat("--master_port=", meeting_.number());
  // One node alone takes its port itself, which the test holds.
  struct Choice {
    std::string name;
    Arguments options;
  };
  const std::vector<Choice> choices = {{"all", {port}},
                                       {"include", {port, "--include=b@a:1"}},
                                       {"exclude", {port, "--exclude=a:0"}},
                                       {"num_gpus", {port, "--num_gpus=1"}},
                                       {"num_nodes", {"--num_nodes=1"}}};
  for (const Choice& choice : choices) {
    const auto line = [&](const std::string& whose) {
      return Arguments{"--hostfile=" + File("hosts")} + choice.options +
             Arguments{script, "--lr", "1", Out(whose)};
    };
    const auto shown_by = [&](const std::string& whose) {
      nlohmann::json shown = nlohmann::json::array();
      for (int rank = 0; FileExists(absl::StrCat(Out(whose), ".", rank)); ++rank) {
        shown.push_back(ReadOut(absl::StrCat(whose, ".", rank)));
      }
      return shown;
    };
    const nlohmann::json theirs = PeerRecord("deepspeed", "deepspeed").Outcome(choice.name, [&] {
      const std::string python = PeerPython();
      const std::string deepspeed = python.substr(0, python.rfind('/') + 1) + "deepspeed";
      const SubprocessResult result =
          StartProgram(Arguments{python, deepspeed} + line("theirs." + choice.name), environment)
              .Wait(absl::Minutes(4));
      return HasSucceeded(result) ? shown_by("theirs." + choice.name) : nlohmann::json();
    });
    EXPECT_THAT(Run(Arguments{"deepspeed"} + line("ours." + choice.name), environment),
                ExitsWith(0));
    EXPECT_EQ(shown_by("ours." + choice.name), theirs) << choice.name;
  }
}

// An `ssh` that greets as an agent does, and ends.
class ManyHosts : public JobTest {
 protected:
  // `limit` is as the shell's ulimit takes it.
  SubprocessResult RunOn(int num_hosts, const std::string& limit) const {
    ShellScript("ssh",
                absl::StrCat("[ \"$1\" = -G ] && exit 0\n"
                             "touch $OUT/reaching.$$; ls $OUT | grep -c reaching >> $OUT/counts\n"
                             "rm $OUT/reaching.$$; echo '",
                             launcher::kRemoteGreeting, "'"));
    std::string hosts;
    for (int i = 1; i <= num_hosts; ++i) absl::StrAppend(&hosts, "n", i, " slots=1\n");
    WriteFile(directory() + "/hosts", hosts);
    return StartProgram({"/bin/sh", "-c", absl::StrCat("ulimit ", limit, " && exec \"$@\""), "sh",
                         MusterBinary(), absl::StrCat("--hostfile=", directory(), "/hosts"),
                         ShellScript("worker", "exit 0")},
                        {{"PATH", directory() + ":/usr/bin:/bin"}})
        .Wait();
  }
};

TEST_F(ManyHosts, AreReachedAFewAtATimeUnderAnOrdinaryLimitOnOpenFiles) {
  EXPECT_THAT(RunOn(100, "-Sn 256"), ExitsWith(0));
  int num_hosts = 0;
  for (const absl::string_view count : absl::StrSplit(ReadOut("counts"), '\n', absl::SkipEmpty())) {
    EXPECT_LE(std::stoi(std::string(count)), 64);
    ++num_hosts;
  }
  EXPECT_EQ(num_hosts, 100);
}

TEST_F(ManyHosts, AreNamedWhereOneCannotBeReachedForWantOfOpenFiles) {
  const SubprocessResult result = RunOn(100, "-n 64");
  EXPECT_THAT(result, ExitsWith(4));
  EXPECT_THAT(result.err,
              ContainsRegex("cannot start an agent on n[0-9]+: ssh cannot be started here: Too "
                            "many open files; stopping the others"));
}

// Hosts that need no ssh: one that would be called on fails the test.
class ThisMachineTest : public JobTest {
 protected:
  SubprocessResult RunOn(const std::string& host, const Arguments& script) const {
    ShellScript("ssh", "touch \"$OUT/ssh\"; exit 255");
    WriteFile(directory() + "/hosts", host + " slots=2\n");
    return Run(Arguments{"--hostfile=" + directory() + "/hosts"} + script,
               {{"PATH", directory() + ":/usr/bin:/bin"}});
  }
};

// `deepspeed` does the same with a host file of one machine.
TEST_F(ThisMachineTest, IsStartedOnWithoutSsh) {
  const std::string script = ShellScript(
      "worker", "echo \"worker $RANK of $WORLD_SIZE $CROSS_RANK/$CROSS_SIZE $LOCAL_SIZE $*\"");
  char name[HOST_NAME_MAX + 1] = "";
  ASSERT_EQ(gethostname(name, sizeof(name)), 0);
  for (const std::string& host :
       {std::string("localhost"), std::string("127.0.0.1"), std::string(name)}) {
    const SubprocessResult result = RunOn(host, {script, "a b"});
    EXPECT_THAT(result, ExitsWith(0)) << host;
    EXPECT_THAT(result.out, HasSubstr("worker 0 of 2 0/1 2 --local_rank=0 a b\n"));
    EXPECT_THAT(result.out, HasSubstr("worker 1 of 2 0/1 2 --local_rank=1 a b\n"));
    EXPECT_FALSE(FileExists(Out("ssh"))) << host;
  }
}

// `deepspeed --no_ssh` does the same.
TEST_F(ThisMachineTest, IsTheHostThatItsLineSaysWhereEachHostIsGivenOne) {
  const std::string script =
      ShellScript("worker", "echo \"worker $RANK of $WORLD_SIZE $CROSS_RANK/$CROSS_SIZE\"");
  WriteFile(directory() + "/hosts", "127.0.0.1 slots=1\n127.0.0.2 slots=2\n");
  const LoopbackPort port;
  const auto line = [&](const std::string& rank) {
    return Arguments{
        "deepspeed",           "--hostfile=" + directory() + "/hosts",        "--no_ssh",
        "--node_rank=" + rank, absl::StrCat("--master_port=", port.number()), script};
  };
  Subprocess first = Start(line("0"));
  const SubprocessResult second = Run(line("1"));
  const SubprocessResult result = first.Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(second, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("worker 0 of 3 0/2\n"));
  EXPECT_THAT(second.out, HasSubstr("worker 2 of 3 1/2\n"));
  const SubprocessResult none = Run(line("2"));
  EXPECT_THAT(none, ExitsWith(2));
  EXPECT_THAT(none.err, HasSubstr("--node_rank=2: expected 0 to 1"));
}

TEST_F(ThisMachineTest, GivesTheCodeOfItsWorkers) {
  EXPECT_THAT(RunOn("localhost", {ShellScript("worker", "exit 9")}), ExitsWith(9));
}

TEST_F(ThisMachineTest, IsReachedOverSshAsAnotherUser) {
  EXPECT_THAT(RunOn("somebody-else@localhost", {ShellScript("worker", "exit 0")}), ExitsWith(4));
  EXPECT_TRUE(FileExists(Out("ssh")));
}

}  // namespace
}  // namespace muster::testing
