#include "proto/spec/worker_env.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

WorkerEnv Rank5() {
  WorkerEnv env;
  env.rank = Rank(5);
  env.local_rank = LocalRank(1);
  env.world_size = 8;
  env.local_world_size = 4;
  env.node_rank = NodeRank(1);
  env.num_nodes = 2;
  env.role_name = "trainer";
  env.role_rank = 5;
  env.role_world_size = 8;
  env.master_addr = "10.0.0.1";
  env.master_port = 41234;
  env.restart_count = 2;
  env.max_restarts = 3;
  env.run_id = "job7";
  env.error_file = "/logs/attempt_2/1/error.json";
  env.signals_to_handle = "SIGTERM,SIGINT";
  env.instance = Instance(6);
  env.round = Round(2);
  env.agent_socket = "/run/agent.sock";
  env.board = "/run/board-2-1";
  env.torch_server = "/run/2.1";
  return env;
}

TEST(EncodeWorkerEnv, KeepsAUsersTfConfig) {
  WorkerEnv env;
  env.tf_config = "{}";
  EXPECT_EQ(EncodeWorkerEnv(env, {}).at("TF_CONFIG"), "{}");
  EXPECT_FALSE(EncodeWorkerEnv(env, {{"TF_CONFIG", "mine"}}).contains("TF_CONFIG"));
}

TEST(EncodeWorkerEnv, NarrowsTheDevicesOfHipWithThoseOfCuda) {
  WorkerEnv env;
  env.visible_devices = "3";
  EXPECT_FALSE(EncodeWorkerEnv(env, {}).contains("HIP_VISIBLE_DEVICES"));
  EXPECT_EQ(EncodeWorkerEnv(env, {{"HIP_VISIBLE_DEVICES", "2,3"}}).at("HIP_VISIBLE_DEVICES"), "3");
}

// torchrun's names and spellings, byte for byte.
// Source: torch 2.15, elastic/agent/server/local_elastic_agent.py.
TEST(EncodeWorkerEnv, SetsTorchrunsVariablesAndOurs) {
  const EnvironmentMap expected = {
      {"RANK", "5"},
      {"LOCAL_RANK", "1"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_NAME", "trainer"},
      {"ROLE_RANK", "5"},
      {"ROLE_WORLD_SIZE", "8"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "41234"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_RUN_ID", "job7"},
      {"TORCHELASTIC_ERROR_FILE", "/logs/attempt_2/1/error.json"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"MUSTER_INSTANCE", "6"},
      {"MUSTER_ROUND", "2"},
      {"MUSTER_LOCAL_RANK", "1"},
      {"MUSTER_AGENT_SOCKET", "/run/agent.sock"},
      {"MUSTER_BOARD", "/run/board-2-1"},
      {"MUSTER_TORCH_SERVER", "/run/2.1"},
      {"MUSTER_TORCH_GROUP",
       R"({"host":"10.0.0.1","port":41234,"rank":5,"world_size":8,"num_nodes":2,"restart_count":2,)"
       R"("round":2,"error_file":"/logs/attempt_2/1/error.json","notes":"/run/torch.sock"})"},
      {"PYTHONPATH", "/run/python"},
      {"TORCH_FR_BUFFER_SIZE", "512"},
  };
  WorkerEnv env = Rank5();
  env.python_folder = "/run/python";
  env.torch_notes = "/run/torch.sock";
  EnvironmentMap out = EncodeWorkerEnv(env, {});
  EXPECT_EQ(out.erase("TRACEPARENT"), 1);
  EXPECT_EQ(out, expected);
}

// Source: accelerate 1.15: Accelerator() is distributed where LOCAL_RANK is set.
TEST(EncodeLoneWorkerEnv, TellsNothingOfRanks) {
  WorkerEnv env = Rank5();
  env.tf_config = "{}";
  env.visible_devices = "3";
  env.python_folder = "/run/python";
  std::vector<std::string> names;
  for (const auto& [name, value] : EncodeLoneWorkerEnv(env, {})) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("CUDA_VISIBLE_DEVICES", "MUSTER_AGENT_SOCKET", "MUSTER_BOARD",
                                 "MUSTER_INSTANCE", "MUSTER_LOCAL_RANK", "MUSTER_ROUND",
                                 "MUSTER_TORCH_GROUP", "MUSTER_TORCH_SERVER", "PYTHONPATH",
                                 "TORCH_FR_BUFFER_SIZE", "TRACEPARENT"));
}

TEST(EncodeWorkerEnv, NamesOneTraceForTheJobAndASpanForTheRound) {
  const auto trace_parent = [](WorkerEnv env) {
    return EncodeWorkerEnv(env, {}).at("TRACEPARENT");
  };
  const auto trace = [](const std::string& parent) { return parent.substr(0, 36); };
  const std::string of_rank_5 = trace_parent(Rank5());
  EXPECT_THAT(of_rank_5, MatchesRegex("00-[0-9a-f]{32}-[0-9a-f]{16}-01"));
  WorkerEnv other = Rank5();
  other.rank = Rank(6);
  EXPECT_EQ(trace_parent(other), of_rank_5);
  other.round = Round(3);
  EXPECT_NE(trace_parent(other), of_rank_5);
  EXPECT_EQ(trace(trace_parent(other)), trace(of_rank_5));
  other.instance = Instance(7);
  EXPECT_NE(trace(trace_parent(other)), trace(of_rank_5));
  EXPECT_FALSE(EncodeWorkerEnv(Rank5(), {{"TRACEPARENT", "00-a-b-01"}}).contains("TRACEPARENT"));
}

TEST(EncodeWorkerEnv, KeepsAUsersPythonPathAndRecorder) {
  WorkerEnv env = Rank5();
  env.python_folder = "/run/python";
  EXPECT_EQ(EncodeWorkerEnv(env, {{"PYTHONPATH", "/a:/b"}}).at("PYTHONPATH"), "/run/python:/a:/b");
  for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
    EXPECT_FALSE(EncodeWorkerEnv(env, {{name, "0"}}).contains("TORCH_FR_BUFFER_SIZE")) << name;
  }
}

TEST(EncodeWorkerEnv, LeavesPythonAloneWithoutAHook) {
  EXPECT_FALSE(EncodeWorkerEnv(Rank5(), {}).contains("PYTHONPATH"));
  EXPECT_FALSE(EncodeWorkerEnv(Rank5(), {}).contains("MUSTER_TORCH_GROUP"));
}

TEST(EncodeWorkerEnv, SaysWhereTheGroupMeetsAlsoWhereNobodyWatches) {
  WorkerEnv env = Rank5();
  env.python_folder = "/run/python";
  env.torch_server.clear();
  EXPECT_TRUE(EncodeWorkerEnv(env, {}).contains("PYTHONPATH"));
  EXPECT_TRUE(EncodeWorkerEnv(env, {}).contains("MUSTER_TORCH_GROUP"));
  EXPECT_FALSE(EncodeWorkerEnv(env, {}).contains("MUSTER_TORCH_SERVER"));
  EXPECT_FALSE(EncodeWorkerEnv(env, {}).contains("TORCH_FR_BUFFER_SIZE"));
}

TEST(EncodeWorkerEnv, LeavesInheritedErrorHandlingAlone) {
  const EnvironmentMap out = EncodeWorkerEnv(Rank5(), {{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}});
  EXPECT_EQ(out.count("TORCH_NCCL_ASYNC_ERROR_HANDLING"), 0);
}

TEST(EncodeWorkerEnv, ShowsEveryWorkerAsLocalRank0WithVirtualLocalRank) {
  WorkerEnv env = Rank5();
  env.virtual_local_rank = true;
  env.visible_devices = "3";
  EnvironmentMap out = EncodeWorkerEnv(env, {});
  EXPECT_EQ(out["LOCAL_RANK"], "0");
  EXPECT_EQ(out["MUSTER_LOCAL_RANK"], "1");
  EXPECT_EQ(out["CUDA_VISIBLE_DEVICES"], "3");
}

TEST(EncodeWorkerEnv, LeavesDevicesAndTfConfigAloneUnlessTheyAreKnown) {
  const EnvironmentMap out = EncodeWorkerEnv(Rank5(), {});
  EXPECT_EQ(out.count("CUDA_VISIBLE_DEVICES"), 0);
  EXPECT_EQ(out.count("TF_CONFIG"), 0);
}

WorkerEnv Generated(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  WorkerEnv env;
  env.world_size = 1 + below(100000);
  env.rank = Rank(below(env.world_size));
  env.local_world_size = 1 + below(16);
  env.local_rank = LocalRank(below(env.local_world_size));
  env.num_nodes = 1 + below(10000);
  env.node_rank = NodeRank(below(env.num_nodes));
  env.role_name = absl::StrCat("role ", below(9), "=\xff");
  env.role_world_size = 1 + below(100);
  env.role_rank = below(env.role_world_size);
  env.master_addr = below(2) == 0 ? "fe80::1" : "node1";
  env.master_port = below(65536);
  env.restart_count = below(100);
  env.max_restarts = below(100);
  env.run_id = absl::StrCat("id", below(100));
  env.error_file = below(2) == 0 ? "" : "/a b/error.json";
  env.virtual_local_rank = below(2) == 0;
  env.visible_devices = below(2) == 0 ? "" : "GPU-1,2";
  env.tf_config = below(2) == 0 ? "" : MakeTfConfig({"h:1"}, Rank(0));
  env.instance = Instance(below(100000));
  env.round = Round(below(100) - 1);
  env.agent_socket = below(2) == 0 ? "" : "/run/x.sock";
  return env;
}

TEST(DecodeWorkerEnv, GivesBackWhatWasEncoded) {
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) {
    const WorkerEnv env = Generated(random);
    const absl::StatusOr<WorkerEnv> decoded = DecodeWorkerEnv(EncodeWorkerEnv(env, {}));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_TRUE(*decoded == env) << "value " << i;
  }
}

TEST(DecodeWorkerEnv, IsOneRankOfOneWithoutALauncher) {
  const absl::StatusOr<WorkerEnv> env = DecodeWorkerEnv({{"HOME", "/root"}});
  ASSERT_TRUE(env.ok());
  EXPECT_TRUE(*env == WorkerEnv{});
}

TEST(DecodeWorkerEnv, IsOneRankOfOneWhereOnlyWeSayWhoWeAre) {
  const absl::StatusOr<WorkerEnv> env = DecodeWorkerEnv(EncodeLoneWorkerEnv(Rank5(), {}));
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->rank, Rank(0));
  EXPECT_EQ(env->local_rank, LocalRank(0));
  EXPECT_EQ(env->world_size, 1);
  EXPECT_EQ(env->round, Round(2));
  EXPECT_EQ(env->agent_socket, "/run/agent.sock");
  EXPECT_EQ(env->board, "/run/board-2-1");
}

TEST(DecodeWorkerEnv, ReadsWhatTorchrunSet) {
  EnvironmentMap environment = EncodeWorkerEnv(Rank5(), {});
  for (const char* ours :
       {"MUSTER_INSTANCE", "MUSTER_ROUND", "MUSTER_LOCAL_RANK", "MUSTER_AGENT_SOCKET"}) {
    environment.erase(ours);
  }
  const absl::StatusOr<WorkerEnv> env = DecodeWorkerEnv(environment);
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->local_rank, LocalRank(1));
  EXPECT_EQ(env->agent_socket, "");
}

TEST(DecodeWorkerEnv, NamesEachMissingVariable) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
        "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "MUSTER_INSTANCE", "MUSTER_ROUND",
        "MUSTER_LOCAL_RANK"}) {
    EnvironmentMap environment = EncodeWorkerEnv(Rank5(), {});
    environment.erase(name);
    const absl::Status status = DecodeWorkerEnv(environment).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()),
                StartsWith(absl::StrCat(name, " is not in the environment")));
  }
}

TEST(DecodeWorkerEnv, NamesEachValueThatIsNoNumberOrOutOfRange) {
  const std::vector<std::pair<const char*, const char*>> bad = {
      {"RANK", "8"},
      {"RANK", "-1"},
      {"RANK", "x"},
      {"WORLD_SIZE", "0"},
      {"GROUP_RANK", "2"},
      {"ROLE_RANK", "8"},
      {"MASTER_PORT", "65536"},
      {"MUSTER_ROUND", "-2"},
      {"MUSTER_LOCAL_RANK", "4"},
      {"WORLD_SIZE", "99999999999"},
      {"TORCHELASTIC_RESTART_COUNT", "-1"},
      {"MUSTER_INSTANCE", ""}};
  for (const auto& [name, value] : bad) {
    EnvironmentMap environment = EncodeWorkerEnv(Rank5(), {});
    environment[name] = value;
    EXPECT_THAT(std::string(DecodeWorkerEnv(environment).status().message()),
                StartsWith(absl::StrCat(name, "=", value, ": expected ")));
  }
}

TEST(MakeTfConfig, NamesEveryWorkerAndTheOwnIndex) {
  EXPECT_EQ(
      MakeTfConfig({"10.0.0.1:41", "[::1]:42"}, Rank(1)),
      R"({"cluster":{"worker":["10.0.0.1:41","[::1]:42"]},"task":{"type":"worker","index":1}})");
}

TEST(MakeTfConfig, IsEmptyWhenItWouldNotFitOrNothingIsKnown) {
  EXPECT_EQ(MakeTfConfig({}, Rank(0)), "");
  const std::vector<std::string> many(8000, "node-with-a-long-name:12345");
  EXPECT_EQ(MakeTfConfig(many, Rank(0)), "");
  const std::vector<std::string> fitting(4000, "10.20.30.40:12345");
  EXPECT_NE(MakeTfConfig(fitting, Rank(0)), "");
}

TEST(IsWithheldFromWorkers, HoldsBackSecretsAndAnOuterJobsVariables) {
  for (const char* name : {"MUSTER_TOKEN", "MUSTER_TOKEN_FILE", "MUSTER_BOARD", "MUSTER_ROUND",
                           "MUSTER_AGENT_SOCKET", "MUSTER_VIRTUAL_LOCAL_RANK"}) {
    EXPECT_TRUE(IsWithheldFromWorkers(name)) << name;
  }
  for (const char* name : {"PATH", "RANK", "MUSTER_MY_SETTING"}) {
    EXPECT_FALSE(IsWithheldFromWorkers(name)) << name;
  }
}

// What a worker is given must not survive into a job inside the job.
TEST(IsWithheldFromWorkers, HoldsBackEveryVariableOfOursThatIsEncoded) {
  WorkerEnv env = Rank5();
  env.virtual_local_rank = true;
  for (const auto& [name, value] : EncodeWorkerEnv(env, {})) {
    if (name.rfind("MUSTER_", 0) == 0) {
      EXPECT_TRUE(IsWithheldFromWorkers(name)) << name;
    }
  }
}

}  // namespace
}  // namespace muster
