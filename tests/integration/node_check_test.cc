// The program of --node_check: what a node does that does not pass it, and what the others notice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "proto/base/exit_codes.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"
#include "tests/support/node_network.h"
#include "tests/support/patience.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(90);

class NodeCheck : public SeveralNodes {
 protected:
  std::string Check(const std::string& commands) const {
    return "--node_check=" + ShellScript("check.sh", commands);
  }
  // A check that fails while the file $OUT/bad.$1 of the node is there.
  std::string ChecksNode(int node) const {
    return "--node_check=" + ShellScript(absl::StrCat("check", node, ".sh"),
                                         absl::StrCat("[ ! -e $OUT/bad.", node,
                                                      " ] || { echo looks; echo GPU 3 of node ",
                                                      node, " is gone; exit 1; }"));
  }
  // The status of the job of several nodes; null if there is none.
  nlohmann::json Status() const {
    const SubprocessResult result =
        Run({"status", "elastic", "--json", "--rdzv_endpoint=" + endpoint()});
    return nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }
  // The member of the status at this address; null if there is none.
  nlohmann::json StatusOf(int node) const {
    const nlohmann::json page = Status();
    if (!page.is_object()) return nullptr;
    for (const nlohmann::json& member : page["members"]) {
      if (member["name"] == AddressOf(node)) return member;
    }
    return nullptr;
  }
  bool BecomesUnfit(int node) const {
    return WaitUntil(
        [&] {
          const nlohmann::json member = StatusOf(node);
          return member.is_object() && member["state"] == "unfit";
        },
        kLong);
  }
};

TEST_F(NodeCheck, RunsBeforeTheFirstJoinAndAfterAFailureOfTheNodesWorkers) {
  const std::string script = ShellScript("train.sh", R"(
echo worker >> $OUT/order
[ $TORCHELASTIC_RESTART_COUNT = 1 ])");
  EXPECT_THAT(Run({"run", Check("echo check ${MUSTER_NODE_CHECK} ${RANK:-none} >> $OUT/order"),
                   "--max_restarts=1", script}),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("order"), "check 1 none\nworker\ncheck 1 none\nworker\n");
}

TEST_F(NodeCheck, ThatTheOnlyNodeFailsEndsTheJobAtOnceAndSaysWhy) {
  const SubprocessResult result = Run({"run", Check("echo looks\necho GPU 3 is gone >&2\nexit 7"),
                                       ShellScript("train.sh", "touch $OUT/started")});
  EXPECT_THAT(result, ExitsWith(kExitNodeUnfit));
  EXPECT_THAT(result.err, AllOf(HasSubstr("does not pass its check: the node check "),
                                HasSubstr("check.sh exited with code 7: GPU 3 is gone")));
  EXPECT_FALSE(FileExists(Out("started")));
}

TEST_F(NodeCheck, ThatCannotRunIsAMistakeAtOnce) {
  const std::string script = ShellScript("train.sh", "touch $OUT/started");
  WriteFile(Out("plain"), "#!/bin/sh\n");
  WriteFile(Out("no_interpreter"), "#!/no/such/shell\n");
  std::filesystem::permissions(Out("no_interpreter"), std::filesystem::perms::owner_all);
  const std::pair<std::string, std::string> cases[] = {
      {"/no/such/check", "there is no file /no/such/check; give an executable program"},
      {"no_such_check", "give its path, or --node_check=muster-doctor"},
      {Out("plain"), "chmod +x " + Out("plain")},
      {out(), "it is a folder; give an executable program"},
      {Out("no_interpreter"), "cannot start " + Out("no_interpreter")}};
  for (const auto& [program, expected] : cases) {
    const SubprocessResult result = Run({"run", "--node_check=" + program, script});
    EXPECT_THAT(result, ExitsWith(2)) << program;
    EXPECT_THAT(result.err, HasSubstr(expected));
  }
  EXPECT_FALSE(FileExists(Out("started")));
}

TEST_F(NodeCheck, ThatHangsIsEndedWithAllItHasStarted) {
  const SubprocessResult result =
      Run({"run", "--node_check_timeout=1",
           Check("setsid sleep 1000 &\necho waits for the driver\nsleep 1000"),
           ShellScript("train.sh", "exit 0")});
  EXPECT_THAT(result, ExitsWith(kExitNodeUnfit));
  EXPECT_THAT(result.err, HasSubstr("did not end within 1s (--node_check_timeout): waits for the"));
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(NodeCheck, ThatHangsOnANodeThatStaysLeavesNothingBehindEither) {
  Subprocess host = StartElastic(1, "1:2",
                                 {"--rdzv_conf=last_call_timeout=1,join_timeout=60",
                                  ShellScript("train.sh", "exec sleep 1000")});
  Subprocess sick = StartElastic(
      2, "1:2",
      {"--rdzv_conf=last_call_timeout=1,join_timeout=60", "--node_check_timeout=1",
       Check("setsid sleep 1000 &\nsleep 1000"), ShellScript("train.sh", "exec sleep 1000")});
  ASSERT_TRUE(BecomesUnfit(2));
  EXPECT_TRUE(WaitUntil(
      [&] {
        for (const pid_t pid : AllBelow(sick.pid())) {
          if (NameOf(pid) == "sleep") return false;
        }
        return true;
      },
      kLong));
  sick.Signal(SIGTERM);
  EXPECT_THAT(sick.Wait(kLong), ExitsWith(128 + SIGTERM));
  host.Signal(SIGTERM);
  EXPECT_THAT(host.Wait(kLong), ExitsWith(128 + SIGTERM));
}

TEST_F(NodeCheck, ThatPrintsAGigabyteCostsNoMemoryAndNoEscapesAreShown) {
  const SubprocessResult result = Run(
      {"run",
       Check("yes 0123456789012345678901234567890123456789 | head -c 1000000000\n"
             "head -c 100000000 /dev/zero; echo\n"
             "printf '\\033[31mGPU 3\\033[0m \\033]52;c;AAAA\\007is\\200 gone\\n\\033[2J\\n'\n"
             "grep VmHWM /proc/$(grep PPid /proc/$PPID/status | tr -dc 0-9)/status > $OUT/memory\n"
             "exit 1"),
       ShellScript("train.sh", "exit 0")});
  EXPECT_THAT(result, ExitsWith(kExitNodeUnfit));
  EXPECT_THAT(result.err, HasSubstr("exited with code 1: GPU 3 is"));
  EXPECT_THAT(result.err, HasSubstr(" gone"));
  EXPECT_THAT(result.err, Not(HasSubstr("\x1b")));
  EXPECT_THAT(result.err, Not(HasSubstr("AAAA")));
  long kilobytes = 0;
  ASSERT_EQ(sscanf(ReadOut("memory").c_str(), "VmHWM: %ld", &kilobytes), 1) << ReadOut("memory");
  EXPECT_LT(kilobytes, 400 * 1024) << "of the agent";
}

TEST_F(NodeCheck, IsEndedByAnInterrupt) {
  Subprocess job = Start({"run", Check("touch $OUT/check\nsetsid sleep 1000 &\nexec sleep 1000"),
                          ShellScript("train.sh", "exit 0")});
  ASSERT_TRUE(WaitForOut("check"));
  job.Signal(SIGINT);
  EXPECT_THAT(job.Wait(kLong), ExitsWith(130));
}

// A node that fails before it joins: a spare takes its place, and nothing of the others ends.
TEST_F(NodeCheck, ANodeThatFailsNeverRunsAndASpareTakesItsPlace) {
  WriteFile(Out("bad.2"), "");
  const std::string script =
      ShellScript("train.sh",
                  "echo $1 >> $OUT/ran; touch $OUT/up.$1; while [ ! -e $OUT/end ]; do "
                  "sleep 0.1; done");
  std::vector<Subprocess> agents;
  for (const int node : {1, 2, 3}) {
    agents.push_back(StartElastic(node, "2:2", {ChecksNode(node), script, std::to_string(node)}));
    if (node == 2) {
      ASSERT_TRUE(BecomesUnfit(2));
    }
  }
  ASSERT_TRUE(WaitForOut("up.1"));
  ASSERT_TRUE(WaitForOut("up.3"));
  const nlohmann::json page = Status();
  EXPECT_EQ(page["health"]["state"], "healthy") << page;
  EXPECT_EQ(page["restarts"]["used"], 0);
  EXPECT_EQ(page["nodes"]["unfit"], 1);
  const std::string why = StatusOf(2)["check"];
  EXPECT_THAT(why, HasSubstr("check2.sh exited with code 1: GPU 3 of node 2 is gone"));
  const SubprocessResult text = Run({"status", "elastic", "--rdzv_endpoint=" + endpoint()});
  EXPECT_THAT(text.out, AllOf(HasSubstr("unfit"), HasSubstr("is gone")));
  WriteFile(Out("end"), "");
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLong), ExitsWith(0));
  EXPECT_THAT(ReadOut("ran"), Not(HasSubstr("2")));
}

// A node whose workers fail because of it: it is checked, fails, and the spare goes on in its place
// for the price of the one restart that the failure has cost.
TEST_F(NodeCheck, ANodeThatFailsAfterItsWorkersIsReplacedByTheSpare) {
  const std::string script = ShellScript("train.sh", R"(
echo $1 $TORCHELASTIC_RESTART_COUNT >> $OUT/ran
touch $OUT/up.$1.$TORCHELASTIC_RESTART_COUNT
while [ ! -e $OUT/end ]; do
  if [ $1 = 2 ] && [ -e $OUT/fail ]; then touch $OUT/bad.2; exit 9; fi
  sleep 0.1
done)");
  std::vector<Subprocess> agents;
  for (const int node : {1, 2, 3}) {
    agents.push_back(StartElastic(
        node, "2:2", {"--max_restarts=1", ChecksNode(node), script, std::to_string(node)}));
    if (node == 2) {
      ASSERT_TRUE(WaitForOut("up.2.0"));
    }
  }
  ASSERT_TRUE(WaitUntil([&] { return Status()["nodes"]["joined"] == 1; }, kLong)) << "a spare";
  WriteFile(Out("fail"), "");
  ASSERT_TRUE(WaitForOut("up.3.1"));
  ASSERT_TRUE(WaitForOut("up.1.1"));
  ASSERT_TRUE(BecomesUnfit(2));
  EXPECT_EQ(Status()["restarts"]["used"], 1);
  // Longer than the pause before the next check: nothing of it ends the round.
  absl::SleepFor(absl::Seconds(12));
  const nlohmann::json page = Status();
  EXPECT_EQ(page["health"]["state"], "healthy") << page;
  EXPECT_EQ(page["restarts"]["used"], 1);
  EXPECT_EQ(page["restarts"]["for_other_nodes"], 0);
  WriteFile(Out("end"), "");
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLong), ExitsWith(0));
}

// A static job restarts for a node that is lost, and this one has one restart. The check takes
// longer than the lease.
TEST_F(NodeCheck, KeepsTheLeaseOfTheNodeWhileItRuns) {
  const std::string check = Check("[ ! -e $OUT/failed ] || sleep 9");
  const std::string script = ShellScript("train.sh", R"(
if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then touch $OUT/failed; exit 3; fi
[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 1000)");
  std::vector<Subprocess> agents;
  for (const int node : {0, 1}) {
    agents.push_back(StartStatic(node, 2, {"--max_restarts=1", check, script}));
  }
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLong), ExitsWith(0));
}

// The node that hosts the rendezvous does not pass its check: it serves the others and has no
// place; once it has recovered it joins by itself.
TEST_F(NodeCheck, TheHostOfTheRendezvousServesOnAndJoinsOnceItHasRecovered) {
  WriteFile(Out("bad.1"), "");
  const std::string script = ShellScript(
      "train.sh", "touch $OUT/up.$1.of.$WORLD_SIZE; while [ ! -e $OUT/end ]; do sleep 0.1; done");
  std::vector<Subprocess> agents;
  for (const int node : {1, 2}) {
    agents.push_back(StartElastic(
        node, "1:2",
        {"--rdzv_conf=last_call_timeout=1", ChecksNode(node), script, std::to_string(node)}));
  }
  ASSERT_TRUE(WaitForOut("up.2.of.1"));
  ASSERT_TRUE(BecomesUnfit(1));
  std::filesystem::remove(Out("bad.1"));
  ASSERT_TRUE(WaitUntil([&] { return FileExists(Out("up.1.of.2")); }, kLong));
  WriteFile(Out("end"), "");
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLong), ExitsWith(0));
}

TEST_F(NodeCheck, AJobThatIsTooSmallWithoutTheNodeEndsAtItsJoinTimeoutAndNamesIt) {
  WriteFile(Out("bad.2"), "");
  std::vector<Subprocess> agents;
  for (const int node : {1, 2}) {
    agents.push_back(StartElastic(node, "2:2",
                                  {"--rdzv_conf=join_timeout=4", ChecksNode(node),
                                   ShellScript("train.sh", "exit 0"), std::to_string(node)}));
  }
  for (Subprocess& agent : agents) {
    const SubprocessResult result = agent.Wait(kLong);
    EXPECT_THAT(result, ExitsWith(kExitNodesMissing));
    EXPECT_THAT(result.err, HasSubstr("127.0.0.2 does not pass its check: the node check "));
    EXPECT_THAT(result.err, HasSubstr("GPU 3 of node 2 is gone"));
  }
}

// Six machines, of which one is sick: the job of five runs on the others.
class NodeCheckOnMachines : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (!NodeNetwork::IsPossible()) {
      GTEST_SKIP() << "network namespaces need root and iproute2";
    }
    network_.emplace(6);
  }
  void TearDown() override {
    network_.reset();
    JobTest::TearDown();
  }

  std::optional<NodeNetwork> network_;
};

TEST_F(NodeCheckOnMachines, FiveOfSixRunAndTheStatusNamesTheSixth) {
  const std::string check =
      ShellScript("check.sh", "[ $SICK = no ] || { echo GPU 3 is gone; exit 1; }");
  const std::string script = ShellScript(
      "train.sh",
      "touch $OUT/up.$RANK.of.$WORLD_SIZE; while [ ! -e $OUT/end ]; do sleep 0.1; done");
  const std::string endpoint = absl::StrCat("--rdzv_endpoint=", network_->AddressOf(1), ":29400");
  std::vector<Subprocess> agents;
  for (int node = 1; node <= 6; ++node) {
    agents.push_back(StartProgram(
        network_->On(node, {MusterBinary(), "run", "--nnodes=5", "--rdzv_backend=c10d",
                            "--rdzv_id=j6", endpoint, "--node_check=" + check, script}),
        {{"SICK", node == 4 ? "yes" : "no"}}));
  }
  for (int rank = 0; rank < 5; ++rank) {
    ASSERT_TRUE(WaitForOut(absl::StrCat("up.", rank, ".of.5")));
  }
  SubprocessResult status;
  EXPECT_TRUE(WaitUntil(
      [&] {
        status = StartProgram(network_->On(2, {MusterBinary(), "status", "j6", endpoint})).Wait();
        return status.exit_code == 0 && absl::StrContains(status.out, "GPU 3 is gone");
      },
      kLong));
  EXPECT_THAT(status.out, AllOf(HasSubstr("5 of 5 nodes run 5 ranks"), HasSubstr("1 unfit"),
                                HasSubstr("restarts: 0 of 0 used")));
  WriteFile(Out("end"), "");
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLong), ExitsWith(0));
}

}  // namespace
}  // namespace muster::testing
