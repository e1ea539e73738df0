// Nodes in namespaces whose master is given as loopback or as the wildcard on its own machine, and
// by its address on the others: they meet all the same, and workers get an address that all reach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
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
constexpr int kPort = 29400;

class MasterAddress : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (!NodeNetwork::IsPossible()) {
      GTEST_SKIP() << "network namespaces need root and iproute2";
    }
    network_.emplace(2, 2);
    script_ = ShellScript("train.sh", "echo $MASTER_ADDR > $OUT/$RANK.of.$WORLD_SIZE");
  }

  Subprocess StartStatic(int node, int node_rank, const std::string& master,
                         const Arguments& options = {}) const {
    return StartProgram(network_->On(node, Arguments{MusterBinary(), "run", "--nnodes=2",
                                                     absl::StrCat("--node_rank=", node_rank),
                                                     absl::StrCat("--master_addr=", master),
                                                     absl::StrCat("--master_port=", kPort)} +
                                               options + Arguments{script_}),
                        {});
  }
  Subprocess StartElastic(int node, const std::string& endpoint) const {
    return StartProgram(
        network_->On(node, {MusterBinary(), "run", "--nnodes=2", "--rdzv_backend=c10d",
                            absl::StrCat("--rdzv_endpoint=", endpoint, ":", kPort), script_}),
        {});
  }
  static void ExpectSuccess(std::vector<Subprocess>& agents) {
    for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLongEnough), ExitsWith(0));
    agents.clear();
  }

  std::optional<NodeNetwork> network_;
  std::string script_;
};

// The others reach the second network, which leads nowhere else: what they can use is told.
TEST_F(MasterAddress, OfNodeZeroAloneIsOneThatTheOthersReach) {
  for (const char* master : {"127.0.0.1", "localhost", "0.0.0.0", "::1", "::"}) {
    SCOPED_TRACE(master);
    std::vector<Subprocess> agents;
    agents.push_back(StartStatic(1, 0, master));
    agents.push_back(StartStatic(2, 1, network_->AddressOf(1, 1)));
    ExpectSuccess(agents);
    for (const char* rank : {"0.of.2", "1.of.2"}) {
      EXPECT_EQ(ReadOut(rank), network_->AddressOf(1, 1) + "\n");
    }
  }
}

TEST_F(MasterAddress, OfAnEndpointIsOneThatTheOthersReach) {
  for (const char* endpoint : {"127.0.0.1", "0.0.0.0", "[::]"}) {
    SCOPED_TRACE(endpoint);
    std::vector<Subprocess> agents;
    agents.push_back(StartElastic(1, endpoint));
    agents.push_back(StartElastic(2, network_->AddressOf(1)));
    ExpectSuccess(agents);
    EXPECT_THAT(ReadOut("1.of.2"), ::testing::StartsWith("10.77.0."));
  }
}

TEST_F(MasterAddress, StaysAsItIsTypedWhileAllAgentsAreOnOneMachine) {
  for (const char* master : {"127.0.0.1", "0.0.0.0"}) {
    SCOPED_TRACE(master);
    std::vector<Subprocess> agents;
    for (const int node_rank : {0, 1}) agents.push_back(StartStatic(1, node_rank, master));
    ExpectSuccess(agents);
    EXPECT_EQ(ReadOut("1.of.2"), "127.0.0.1\n");
  }
}

TEST_F(MasterAddress, IsServedNoFurtherWithoutAuthenticationAndThatIsSaid) {
  Subprocess host = StartStatic(1, 0, "127.0.0.1", {"--auth=none"});
  EXPECT_TRUE(host.WaitForOutput("only agents of this machine reach"));
  EXPECT_TRUE(host.WaitForOutput("--master_addr=" + network_->AddressOf(1)));
  const SubprocessResult other =
      StartStatic(2, 1, network_->AddressOf(1), {"--auth=none", "--rdzv_conf=join_timeout=2"})
          .Wait(kLongEnough);
  EXPECT_TRUE(other.ended && other.exit_code != 0) << ToString(other);
  host.Signal(SIGTERM);
  EXPECT_THAT(host.Wait(kLongEnough), ExitsWith(143));
}

}  // namespace
}  // namespace muster::testing
