#include "agent/core/worker_environment.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Node 1 of 2; nodes of 1 and of 2 workers.
Assignment SecondOfTwoNodes() {
  Assignment assignment;
  assignment.round = Round(3);
  assignment.instance = Instance(9);
  assignment.node_rank = NodeRank(1);
  assignment.num_nodes = 2;
  assignment.first_rank = Rank(1);
  assignment.local_world_size = 2;
  assignment.world_size = 3;
  assignment.role_first_rank = 0;
  assignment.role_world_size = 2;
  assignment.restart_count = 1;
  assignment.master_address = "10.0.0.1";
  assignment.master_port = 40000;
  assignment.peers = {
      {.name = "a", .address = "10.0.0.1", .local_world_size = 1, .worker_ports = {41}},
      {.name = "b", .address = "fe80::2", .local_world_size = 2, .worker_ports = {51, 52}}};
  return assignment;
}

TEST(MakeWorkerEnvs, CountsRanksFromTheFirstOfTheNode) {
  const std::vector<WorkerEnv> envs = MakeWorkerEnvs(SecondOfTwoNodes(), {.role_name = "eval"});
  ASSERT_EQ(envs.size(), 2);
  EXPECT_EQ(envs[1].rank, Rank(2));
  EXPECT_EQ(envs[1].local_rank, LocalRank(1));
  EXPECT_EQ(envs[1].role_rank, 1);
  EXPECT_EQ(envs[1].role_world_size, 2);
  EXPECT_EQ(envs[1].role_name, "eval");
  EXPECT_EQ(envs[1].world_size, 3);
  EXPECT_EQ(envs[1].local_world_size, 2);
  EXPECT_EQ(envs[1].node_rank, NodeRank(1));
  EXPECT_EQ(envs[1].num_nodes, 2);
  EXPECT_EQ(envs[1].round, Round(3));
  EXPECT_EQ(envs[1].instance, Instance(9));
  EXPECT_EQ(envs[1].restart_count, 1);
}

TEST(MakeWorkerEnvs, TakesTheMasterFromTheAssignmentUnlessTheJobChoseIt) {
  EXPECT_EQ(MakeWorkerEnvs(SecondOfTwoNodes(), {})[0].master_addr, "10.0.0.1");
  EXPECT_EQ(MakeWorkerEnvs(SecondOfTwoNodes(), {})[0].master_port, 40000);
  const WorkerEnv chosen =
      MakeWorkerEnvs(SecondOfTwoNodes(), {.master_addr = "localhost", .master_port = 29500})[0];
  EXPECT_EQ(chosen.master_addr, "localhost");
  EXPECT_EQ(chosen.master_port, 29500);
}

TEST(MakeWorkerEnvs, ListsEveryWorkerInTfConfig) {
  const std::vector<WorkerEnv> envs = MakeWorkerEnvs(SecondOfTwoNodes(), {});
  EXPECT_THAT(envs[1].tf_config, HasSubstr(R"(["10.0.0.1:41","[fe80::2]:51","[fe80::2]:52"])"));
  EXPECT_THAT(envs[1].tf_config, HasSubstr(R"("index":2)"));
}

TEST(MakeWorkerEnvs, LeavesTfConfigOutWhenPeersOrPortsAreUnknown) {
  Assignment large = SecondOfTwoNodes();
  large.peers = Peers();
  EXPECT_EQ(MakeWorkerEnvs(large, {})[0].tf_config, "");
  Assignment without_ports = SecondOfTwoNodes();
  std::vector<Peer> peers = without_ports.peers.list();
  peers[1].worker_ports.pop_back();
  without_ports.peers = peers;
  EXPECT_EQ(MakeWorkerEnvs(without_ports, {})[0].tf_config, "");
}

TEST(MakeWorkerEnvs, MakesEnvironmentsThatTheRuntimeCanRead) {
  for (const WorkerEnv& env : MakeWorkerEnvs(
           SecondOfTwoNodes(), {.run_id = "j", .virtual_local_rank = true, .agent_socket = "/s"})) {
    const absl::StatusOr<WorkerEnv> decoded = DecodeWorkerEnv(EncodeWorkerEnv(env, {}));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == env);
  }
}

TEST(NamesOfSignals, AreThoseOfTorchrun) {
  EXPECT_EQ(NamesOfSignals({SIGTERM, SIGUSR1}), "SIGTERM,SIGUSR1");
}

TEST(WorkerArguments, NameTheLocalRankAsTorchrunDoes) {
  EXPECT_THAT(
      WorkerArguments({"$local_rank", "--out=${local_rank}.log", "$local_rank/x", "$$", "a$$b"},
                      LocalRank(11)),
      ElementsAre("$local_rank", "--out=11.log", "11/x", "$", "a$b"));
}

TEST(WorkerArguments, KeepEveryOtherDollar) {
  const std::vector<std::string> command = {
      "p", "$HOME", "${rank}", "$", "$local_ranks", "${local_rank", "$ {", "5$", "", "$LOCAL_RANK"};
  EXPECT_EQ(WorkerArguments(command, LocalRank(0)), command);
}

}  // namespace
}  // namespace muster::agent
