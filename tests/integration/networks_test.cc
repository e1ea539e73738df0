// Nodes in namespaces, with two networks of which one is broken: what their workers are told, and
// what is said of the network before they start (agent/network).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/node_network.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLongEnough = absl::Seconds(90);
constexpr int kFirst = 0;
constexpr int kSecond = 1;

class Networks : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (!NodeNetwork::IsPossible()) {
      GTEST_SKIP() << "network namespaces need root and iproute2";
    }
    script_ = ShellScript("train.sh", "env > $OUT/$RANK.of.$WORLD_SIZE");
  }

  // One agent on each node; they meet at node 1 on `meeting`.
  std::vector<SubprocessResult> Run(int num_nodes, int meeting, const Arguments& options,
                                    const std::vector<Environment>& changes = {}) {
    std::vector<Subprocess> agents;
    for (int node = 1; node <= num_nodes; ++node) {
      agents.push_back(StartProgram(
          network_->On(node, Arguments{MusterBinary(), "run",
                                       absl::StrCat("--rdzv_endpoint=",
                                                    network_->AddressOf(1, meeting), ":29400")} +
                                 options + Arguments{script_}),
          static_cast<size_t>(node) <= changes.size() ? changes[node - 1] : Environment{}));
    }
    std::vector<SubprocessResult> results;
    for (Subprocess& agent : agents) results.push_back(agent.Wait(kLongEnough));
    return results;
  }
  static Arguments TwoNodes() { return {"--nnodes=2", "--rdzv_backend=c10d"}; }
  static std::string All(const std::vector<SubprocessResult>& results) {
    std::string all;
    for (const SubprocessResult& result : results) absl::StrAppend(&all, result.err, "\n");
    return all;
  }
  std::string EnvironmentOf(int rank) const {
    return absl::StrCat("\n", ReadOut(absl::StrCat(rank, ".of.2")));
  }

  std::optional<NodeNetwork> network_;
  std::string script_;
};

TEST_F(Networks, WorkersAreToldTheOneThatLeadsToTheMaster) {
  network_.emplace(2, 2);
  const auto results =
      Run(2, kSecond, TwoNodes(),
          {{{"NCCL_TIMEOUT", "60"}}, {{"GLOO_SOCKET_IFNAME", "lo"}, {"NCCL_IB_TIMEOUT", "22"}}});
  EXPECT_THAT(results, Each(ExitsWith(0)));
  EXPECT_THAT(results[0].err, HasSubstr("network eth1 (10.78.0.2): it leads to the master"));
  EXPECT_THAT(results[0].err, HasSubstr("NCCL_TIMEOUT has no effect"));
  EXPECT_THAT(results[1].err, Not(HasSubstr("NCCL_IB_TIMEOUT")));
  const std::string some = EnvironmentOf(0) + EnvironmentOf(1);
  EXPECT_THAT(
      some,
      AllOf(HasSubstr("\nGLOO_SOCKET_IFNAME=eth1\n"), HasSubstr("\nGLOO_SOCKET_IFNAME=lo\n"),
            HasSubstr("\nVLLM_HOST_IP=10.78.0.2\n"), HasSubstr("\nSGLANG_HOST_IP=10.78.0.3\n")));
  EXPECT_THAT(some, Not(HasSubstr("NCCL_SOCKET_IFNAME"))) << "it may use both networks";
}

TEST_F(Networks, NcclIsToldTheOnlyOneThatReachesAll) {
  network_.emplace(2);
  EXPECT_THAT(Run(2, kFirst, TwoNodes()), Each(ExitsWith(0)));
  EXPECT_THAT(EnvironmentOf(0), HasSubstr("\nNCCL_SOCKET_IFNAME==eth0\n"));
  EXPECT_THAT(EnvironmentOf(1), AllOf(HasSubstr("\nNCCL_SOCKET_IFNAME==eth0\n"),
                                      HasSubstr("\nTP_SOCKET_IFNAME=eth0\n")));
}

TEST_F(Networks, VariablesThatTheUserHasExportedStayAsTheyAre) {
  network_.emplace(2);
  const Environment changes = {{"NCCL_SOCKET_IFNAME", "eth"}, {"NCCL_IB_DISABLE", "1"}};
  EXPECT_THAT(Run(2, kFirst, TwoNodes(), {changes, changes}), Each(ExitsWith(0)));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(EnvironmentOf(rank),
                AllOf(HasSubstr("\nNCCL_SOCKET_IFNAME=eth\n"), HasSubstr("\nNCCL_IB_DISABLE=1\n"),
                      HasSubstr("\nGLOO_SOCKET_IFNAME=eth0\n")));
  }
}

TEST_F(Networks, NothingIsToldOrCheckedWhereItIsTurnedOff) {
  network_.emplace(2);
  const auto results = Run(2, kFirst, TwoNodes() + Arguments{"--network=off"});
  EXPECT_THAT(results, Each(ExitsWith(0)));
  EXPECT_THAT(All(results), Not(HasSubstr("network eth0")));
  EXPECT_THAT(EnvironmentOf(0), Not(HasSubstr("SOCKET_IFNAME")));
}

TEST_F(Networks, AnInterfaceThatIsNotThereIsRefused) {
  network_.emplace(1);
  const auto results = Run(1, kFirst, TwoNodes() + Arguments{"--network=eth7"});
  EXPECT_THAT(results[0], ExitsWith(2));
  EXPECT_THAT(results[0].err, HasSubstr("--network=eth7: no interface of this name is up with "
                                        "an address; this node has lo, eth0"));
}

struct Breakage {
  const char* name;
  void (*make)(const NodeNetwork& network);
  const char* said;
};

class BrokenNetworks : public Networks, public ::testing::WithParamInterface<Breakage> {
 protected:
  // The first of two networks is broken, and the nodes meet on the other.
  std::vector<SubprocessResult> RunOverTheBrokenOne(const Arguments& options) {
    network_.emplace(2, 2);
    GetParam().make(*network_);
    return Run(2, kSecond, TwoNodes() + options);
  }
};

TEST_P(BrokenNetworks, AreNamedBeforeTheWorkersStart) {
  // A rank fails for want of a network only where both have started: a node that is later than the
  // other has ended its check by then.
  script_ = ShellScript("train.sh",
                        "touch $OUT/$RANK.is.here\n"
                        "until [ -e $OUT/0.is.here -a -e $OUT/1.is.here ]; do sleep 0.05; done\n"
                        "exit 1");
  const auto results = RunOverTheBrokenOne({"--network=eth0"});
  EXPECT_THAT(results, Each(ExitsWith(1)));
  EXPECT_THAT(All(results), AllOf(HasSubstr("10.77.0.2"), HasSubstr("eth0) does not reach"),
                                  HasSubstr(GetParam().said)));
  for (const SubprocessResult& result : results) {
    const size_t summary = result.err.find("\nnetwork: ");
    ASSERT_NE(summary, std::string::npos) << result.err;
    EXPECT_LT(summary, result.err.find("FAILED"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, BrokenNetworks,
    ::testing::Values(
        Breakage{"NoRoute",
                 [](const NodeNetwork& network) {
                   network.Configure(2,
                                     absl::StrCat("route add unreachable ", network.AddressOf(1)));
                 },
                 "there is no route"},
        Breakage{"DroppedPackets", [](const NodeNetwork& network) { network.CutBetween(1, 2); },
                 "no answer"},
        Breakage{"SmallerMtu", [](const NodeNetwork& network) { network.Narrow(1, kFirst, 1200); },
                 "small packets pass and full ones do not"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(Networks, ABrokenOneThatTheJobDoesNotUseIsNoMatter) {
  network_.emplace(2, 2);
  network_->CutBetween(1, 2);
  const auto results = Run(2, kSecond, TwoNodes() + Arguments{"--network=require"});
  EXPECT_THAT(results, Each(ExitsWith(0)));
  EXPECT_THAT(All(results), Not(HasSubstr("does not reach")));
}

TEST_F(Networks, ANodeThatTwoOthersDoNotReachWaitsAsASpare) {
  network_.emplace(3);
  network_->CutBetween(2, 3);
  const auto results = Run(3, kFirst,
                           {"--nnodes=2:3", "--rdzv_backend=c10d",
                            "--rdzv_conf=last_call_timeout=5", "--network=require"});
  EXPECT_THAT(results, Each(ExitsWith(0))) << "the spare ends with its job";
  EXPECT_THAT(All(results), AllOf(HasSubstr("the larger side of the network goes on without"),
                                  HasSubstr("(--network=require): "), HasSubstr("does not reach")));
  EXPECT_TRUE(FileExists(Out("0.of.2")) && FileExists(Out("1.of.2"))) << All(results);
  for (const char* rank : {"0.of.3", "1.of.3", "2.of.3"}) EXPECT_FALSE(FileExists(Out(rank)));
}

TEST_F(Networks, ASpareThatANodeDidNotReachTakesThePlaceOfThatNode) {
  network_.emplace(3);
  network_->CutBetween(2, 3);
  // The first round with workers goes on until one of its nodes leaves.
  script_ = ShellScript(
      "train.sh",
      "echo $VLLM_HOST_IP > $OUT/part.$RANK && mv $OUT/part.$RANK $OUT/$RANK.in.$MUSTER_ROUND\n"
      "[ $MUSTER_ROUND != 1 ] || sleep 600");
  const Arguments options = {"--nnodes=2:3", "--rdzv_backend=c10d",
                             "--rdzv_conf=last_call_timeout=5", "--network=require"};
  std::vector<Subprocess> agents;
  for (const int node : {1, 2, 3}) {
    agents.push_back(StartProgram(
        network_->On(node,
                     Arguments{MusterBinary(), "run",
                               absl::StrCat("--rdzv_endpoint=", network_->AddressOf(1), ":29400")} +
                         options + Arguments{script_}),
        {}));
  }
  ASSERT_TRUE(WaitForOut("1.in.1"));
  // The one of the two with a place leaves; the other does not reach it.
  const bool has_second_node_it = ReadOut("1.in.1") == network_->AddressOf(2) + "\n";
  agents[has_second_node_it ? 1 : 2].Signal(SIGTERM);
  std::vector<SubprocessResult> results;
  for (Subprocess& agent : agents) results.push_back(agent.Wait(kLongEnough));
  EXPECT_THAT(results[0], ExitsWith(0)) << All(results);
  EXPECT_EQ(ReadOut("1.in.2"), network_->AddressOf(has_second_node_it ? 3 : 2) + "\n");
}

TEST_F(Networks, ARequiredOneEndsTheJobWhereTooFewNodesWouldBeLeft) {
  network_.emplace(3);
  network_->CutBetween(2, 3);
  const auto results = Run(3, kFirst, {"--nnodes=3", "--rdzv_backend=c10d", "--network=require"});
  EXPECT_THAT(results, Each(ExitsWith(4)));
  EXPECT_THAT(All(results), HasSubstr("do not all reach each other (--network=require)"));
  EXPECT_FALSE(FileExists(Out("0.of.3")));
}

TEST_F(Networks, ANameThatLeadsToLoopbackOnItsOwnMachineIsNoTrap) {
  network_.emplace(2);
  network_->SetHosts(1, "127.0.0.1 localhost\n127.0.1.1 node1\n");
  network_->SetHosts(2, absl::StrCat("127.0.0.1 localhost\n", network_->AddressOf(1), " node1\n"));
  std::vector<Subprocess> agents;
  for (const int node : {1, 2}) {
    agents.push_back(StartProgram(network_->On(node, {MusterBinary(), "run", "--nnodes=2",
                                                      absl::StrCat("--node_rank=", node - 1),
                                                      "--master_addr=node1", script_}),
                                  {}));
  }
  std::vector<SubprocessResult> results;
  for (Subprocess& agent : agents) results.push_back(agent.Wait(kLongEnough));
  EXPECT_THAT(results, Each(ExitsWith(0)));
  EXPECT_THAT(results[0].err, HasSubstr("the name node1 is 127.0.1.1 on this machine"));
  EXPECT_THAT(EnvironmentOf(1), HasSubstr("\nMASTER_ADDR=10.77.0.2\n"));
}

TEST_F(Networks, TheDoctorFindsTheSlowNode) {
  network_.emplace(3);
  if (std::system(absl::StrCat("nsenter --net=", network_->NamespaceOf(3),
                               " tc qdisc add dev eth0 root tbf rate 200mbit burst 1mb "
                               "latency 100ms 2> /dev/null")
                      .c_str()) != 0) {
    GTEST_SKIP() << "this kernel cannot slow a network down";
  }
  script_ = ShellScript("doctor", absl::StrCat("exec ", MusterBinary(), " doctor"));
  const auto results = Run(3, kFirst, {"--nnodes=3", "--rdzv_backend=c10d"});
  std::string all;
  for (const SubprocessResult& result : results) absl::StrAppend(&all, result.out);
  EXPECT_THAT(all, HasSubstr("fault: bandwidth: 10.77.0.4 sends at most ")) << All(results);
}

// Each knows itself by a loopback address, as Debian's /etc/hosts has it.
TEST_F(Networks, TheDoctorMeasuresBetweenNodesWhoseOwnNamesAreLoopback) {
  network_.emplace(2);
  std::vector<Subprocess> doctors;
  for (const int node : {1, 2}) {
    const int other = 3 - node;
    network_->SetHosts(node, absl::StrCat("127.0.0.1 localhost\n127.0.1.1 node", node, "\n",
                                          network_->AddressOf(other), " node", other, "\n"));
    doctors.push_back(StartProgram(
        network_->On(node, {MusterBinary(), "doctor"}),
        {{"RANK", absl::StrCat(node - 1)},
         {"LOCAL_WORLD_SIZE", "1"},
         {"TF_CONFIG", R"({"cluster": {"worker": ["node1:29411", "node2:29411"]}})"}}));
  }
  std::vector<SubprocessResult> results;
  for (Subprocess& doctor : doctors) results.push_back(doctor.Wait(kLongEnough));
  EXPECT_THAT(results[0].out, HasSubstr(" Gbit/s"));
}

TEST_F(Networks, NodesThatDifferAreNamed) {
  network_.emplace(3);
  const std::vector<Environment> changes = {{}, {}, {{"PYTHONHASHSEED", "7"}}};
  const Arguments three = {"--nnodes=3", "--rdzv_backend=c10d"};
  const auto results = Run(3, kFirst, three, changes);
  EXPECT_THAT(results, Each(ExitsWith(0)));
  EXPECT_THAT(All(results), HasSubstr("PYTHONHASHSEED: "));
  const auto refused = Run(3, kFirst, three + Arguments{"--strict_nodes"}, changes);
  EXPECT_THAT(refused, Each(ExitsWith(4)));
  EXPECT_THAT(All(refused), HasSubstr("the nodes differ (--strict_nodes): PYTHONHASHSEED: "));
}

}  // namespace
}  // namespace muster::testing
