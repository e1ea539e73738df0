// Several nodes started by hand: each is an agent on a loopback address of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/integration/several_nodes.h"

namespace muster::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// Notes its place under the number of its node, which is $1.
constexpr char kNotesItsPlace[] =
    "echo $GROUP_RANK $RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT > $OUT/node$1.$LOCAL_RANK";

class Static : public SeveralNodes {};

TEST_F(Static, NodesGetTheRanksTheyWereGiven) {
  const std::string script = ShellScript("train.sh", kNotesItsPlace);
  std::vector<Subprocess> agents;
  for (int node : {3, 1, 2, 0}) {
    agents.push_back(StartStatic(node, 4, {"--nproc_per_node=2", script, std::to_string(node)}));
  }
  EXPECT_THAT(WaitForAll(agents), Each(ExitsWith(0)));
  std::set<std::string> ports;
  for (int node = 0; node < 4; ++node) {
    for (int local_rank = 0; local_rank < 2; ++local_rank) {
      const std::vector<std::string> place =
          absl::StrSplit(ReadOut(absl::StrCat("node", node, ".", local_rank)), ' ');
      ASSERT_EQ(place.size(), 5u);
      EXPECT_EQ(place[0], std::to_string(node));
      EXPECT_EQ(place[1], std::to_string(2 * node + local_rank));
      EXPECT_EQ(place[2], "8");
      EXPECT_EQ(place[3], "127.0.0.1") << "the address of node 0";
      ports.insert(place[4]);
    }
  }
  EXPECT_EQ(ports.size(), 1u) << "one MASTER_PORT for all";
}

TEST_F(Static, WorkersMayDifferInNumberBetweenNodes) {
  const std::string script = ShellScript("train.sh", kNotesItsPlace);
  std::vector<Subprocess> agents;
  agents.push_back(StartStatic(0, 2, {"--nproc_per_node=1", script, "0"}));
  agents.push_back(StartStatic(1, 2, {"--nproc_per_node=3", script, "1"}));
  EXPECT_THAT(WaitForAll(agents), Each(ExitsWith(0)));
  EXPECT_THAT(ReadOut("node1.2"), ContainsRegex("^1 3 4 127.0.0.1 "));
}

TEST_F(Static, NodesWithoutACommonHomeMeetWithoutAuthenticationIfAsked) {
  const TemporaryDirectory home0, home1;
  const std::string script = ShellScript("train.sh", kNotesItsPlace);
  std::vector<Subprocess> agents;
  agents.push_back(StartStatic(0, 2, {"--auth=none", script, "0"}, {{"HOME", home0.path()}}));
  agents.push_back(
      StartStatic(1, 2, {script, "1"}, {{"HOME", home1.path()}, {"MUSTER_AUTH", "none"}}));
  const std::vector<SubprocessResult> results = WaitForAll(agents);
  EXPECT_THAT(results, Each(ExitsWith(0)));
  for (const SubprocessResult& result : results) {
    EXPECT_THAT(result.err, ContainsRegex("without authentication [^\n]*--auth=none"))
        << "said on the start line";
    EXPECT_THAT(result.err, Not(ContainsRegex("--auth=none[^$]*--auth=none"))) << "once";
  }
}

// `legacy` has no digest of ours, `fips` is not there, and the last is no configuration.
TEST_F(Static, NodesMeetWhateverTheSitesOpenSslConfigurationActivates) {
  const std::string head = "openssl_conf = x\n[x]\nproviders = p\n";
  const std::string script = ShellScript("train.sh", kNotesItsPlace);
  for (const std::string& text : {head + "[p]\nlegacy = f\n[f]\nactivate = 1\n",
                                  head + "alg_section = a\n[p]\nfips = f\n[f]\nactivate = 1\n[a]\n"
                                         "default_properties = fips=yes\n",
                                  std::string("garbage [[[ = \n")}) {
    WriteFile(Out("openssl.cnf"), text);
    std::vector<Subprocess> agents;
    for (int node = 0; node < 2; ++node) {
      agents.push_back(StartStatic(node, 2, {script, std::to_string(node)},
                                   {{"OPENSSL_CONF", Out("openssl.cnf")}}));
    }
    EXPECT_THAT(WaitForAll(agents), Each(ExitsWith(0))) << text;
  }
}

// So it is for a moment where two agents keep each other from listening, or a process ends that
// had it.
TEST_F(Static, NodesMeetAtAPortThatIsTakenWhenTheyStartAndServedByNobody) {
  std::optional<LoopbackPort> taken(std::in_place, PortUse::kTaken);
  const std::string port = absl::StrCat("--master_port=", taken->number());
  std::vector<Subprocess> agents;
  for (int node = 0; node < 2; ++node) {
    agents.push_back(StartStatic(node, 2, {port, ShellScript("train.sh", "exit 0")}));
  }
  absl::SleepFor(absl::Seconds(1));
  taken.reset();
  EXPECT_THAT(WaitForAll(agents), Each(ExitsWith(0)));
}

TEST_F(Static, AFailingWorkerEndsEveryNodeWithItsExitCode) {
  const std::string script = ShellScript("train.sh", "[ $RANK = 2 ] && exit 9\nexec sleep 1000");
  std::vector<Subprocess> agents;
  for (int node = 0; node < 4; ++node) agents.push_back(StartStatic(node, 4, {script}));
  const std::vector<SubprocessResult> results = WaitForAll(agents);
  EXPECT_THAT(results, Each(ExitsWith(9)));
  for (const SubprocessResult& result : results) {
    EXPECT_THAT(result.err, ContainsRegex("rank[^0-9]*2"))
        << "each node says because of whom it stopped";
  }
}

TEST_F(Static, ARestartReachesEveryNodeWithTheSameCount) {
  const std::string script = ShellScript("train.sh", R"(
echo $GROUP_RANK $RANK >> $OUT/attempt$TORCHELASTIC_RESTART_COUNT
[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0
[ $RANK = 3 ] && exit 1
exec sleep 1000)");
  std::vector<Subprocess> agents;
  for (int node = 0; node < 2; ++node) {
    agents.push_back(StartStatic(node, 2, {"--nproc_per_node=2", "--max_restarts=1", script}));
  }
  EXPECT_THAT(WaitForAll(agents), Each(ExitsWith(0)));
  std::vector<std::string> places = absl::StrSplit(ReadOut("attempt1"), '\n', absl::SkipEmpty());
  EXPECT_THAT(places, ::testing::UnorderedElementsAre("0 0", "0 1", "1 2", "1 3"))
      << "ranks are stable";
}

class Elastic : public SeveralNodes {};

TEST_F(Elastic, NodesStartAtOnceWhenTheMostHaveJoined) {
  const std::string script = ShellScript("train.sh", kNotesItsPlace);
  std::vector<Subprocess> agents;
  for (int node = 1; node <= 4; ++node) {
    agents.push_back(StartElastic(
        node, "2:4", {"--rdzv_conf=last_call_timeout=3600", script, std::to_string(node)}));
  }
  EXPECT_THAT(WaitForAll(agents), Each(ExitsWith(0))) << "the last call was not waited for";
  std::set<std::string> masters;
  std::string address_of_node_zero;
  for (int node = 1; node <= 4; ++node) {
    const std::vector<std::string> place =
        absl::StrSplit(ReadOut(absl::StrCat("node", node, ".0")), ' ');
    ASSERT_EQ(place.size(), 5u);
    EXPECT_EQ(place[2], "4");
    masters.insert(absl::StrCat(place[3], " ", place[4]));
    if (place[0] == "0") address_of_node_zero = AddressOf(node);
  }
  ASSERT_EQ(masters.size(), 1u);
  EXPECT_THAT(*masters.begin(), ::testing::StartsWith(address_of_node_zero + " "));
}

TEST_F(Elastic, NodesStartAfterTheLastCallWithFewerThanTheMost) {
  const std::string script = ShellScript("train.sh", kNotesItsPlace);
  std::vector<Subprocess> agents;
  for (int node = 1; node <= 3; ++node) {
    agents.push_back(StartElastic(
        node, "3:4", {"--rdzv_conf=last_call_timeout=1", script, std::to_string(node)}));
  }
  EXPECT_THAT(WaitForAll(agents), Each(ExitsWith(0)));
  EXPECT_THAT(ReadOut("node3.0"), ContainsRegex("^[0-9] [0-9] 3 "));
}

TEST_F(Elastic, ALateJoinerMakesTheJobGrowWithoutCostingARestart) {
  const std::string script = ShellScript("train.sh", R"(
touch $OUT/world$WORLD_SIZE.$1
[ $WORLD_SIZE = 3 ] && exit 0
exec sleep 1000)");
  const Arguments options = {"--max_restarts=0", "--rdzv_conf=last_call_timeout=1"};
  std::vector<Subprocess> agents;
  for (int node : {1, 2}) {
    agents.push_back(StartElastic(node, "2:3", options + Arguments{script, std::to_string(node)}));
  }
  ASSERT_TRUE(WaitForOut("world2.1") && WaitForOut("world2.2"));
  agents.push_back(StartElastic(3, "2:3", options + Arguments{script, "3"}));
  EXPECT_THAT(WaitForAll(agents), Each(ExitsWith(0)));
}

TEST_F(Elastic, NodesMeetAtAnIpv6Address) {
  const LoopbackPort port(PortUse::kHeld, "::1");
  const std::string script = ShellScript("train.sh", "echo $MASTER_ADDR $WORLD_SIZE > $OUT/$1");
  std::vector<Subprocess> agents;
  for (const char* node : {"1", "2"}) {
    agents.push_back(
        Start({"run", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=six", "--local_addr=::1",
               absl::StrCat("--rdzv_endpoint=[::1]:", port.number()), script, node}));
  }
  EXPECT_THAT(WaitForAll(agents), Each(ExitsWith(0)));
  EXPECT_EQ(ReadOut("1"), "::1 2\n");
}

TEST_F(Elastic, NodesGoOnWithoutAKilledAgentLongBeforeItsLeaseEnds) {
  const std::string script = ShellScript(
      "train.sh", "touch $OUT/$TORCHELASTIC_RESTART_COUNT.$WORLD_SIZE.$RANK\nexec sleep 1000");
  std::vector<Subprocess> agents;
  for (int node = 1; node <= 3; ++node) {
    const char* const conf =
        node == 1 ? "--rdzv_conf=lease=300,is_host=true" : "--rdzv_conf=lease=300,is_host=false";
    agents.push_back(StartElastic(node, "2:3", {conf, script}));
  }
  for (const char* mark : {"0.3.0", "0.3.1", "0.3.2"}) ASSERT_TRUE(WaitForOut(mark)) << mark;
  kill(agents[2].pid(), SIGKILL);
  for (const char* mark : {"1.2.0", "1.2.1"}) EXPECT_TRUE(WaitForOut(mark)) << mark;
  agents[0].Signal(SIGINT);
  agents[1].Signal(SIGINT);
  const SubprocessResult survivor = agents[0].Wait();
  EXPECT_THAT(survivor, ExitsWith(130));
  EXPECT_THAT(survivor.err, HasSubstr("its agent was killed"));
}

TEST_F(Elastic, AnInterruptOfOneNodeEndsTheJobEverywhere) {
  const std::string script = ShellScript("train.sh", "touch $OUT/$1\nexec sleep 1000");
  std::vector<Subprocess> agents;
  for (int node : {1, 2}) agents.push_back(StartElastic(node, "2", {script, std::to_string(node)}));
  ASSERT_TRUE(WaitForOut("1") && WaitForOut("2"));
  agents[1].Signal(SIGINT);
  EXPECT_THAT(WaitForAll(agents), Each(ExitsWith(130)));
}

}  // namespace
}  // namespace muster::testing
