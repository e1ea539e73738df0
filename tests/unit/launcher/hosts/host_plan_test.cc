#include "launcher/hosts/host_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/line/flags.h"

namespace muster::launcher {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

using Args = std::vector<std::string>;

HostJob Job(const Args& args) {
  auto parsed = ParseFlags(args, {});
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok() || !std::holds_alternative<HostJob>(*parsed)) return {};
  return std::get<HostJob>(*parsed);
}

std::string WhyNot(const Args& args) {
  const absl::Status status = ParseFlags(args, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

const std::vector<HostEntry>& TwoHosts() {
  static const std::vector<HostEntry> hosts = {{.host = "a", .slots = {0, 1}},
                                               {.host = "b", .slots = {1}, .are_all_slots = false}};
  return hosts;
}

std::vector<RemoteStart> Plan(const Args& args,
                              const HostSurroundings& surroundings = {.directory = "/home/me",
                                                                      .first_address = "10.0.0.1",
                                                                      .fresh_run_id = "hosts-1"}) {
  auto starts = PlanHosts(Job(args), TwoHosts(), surroundings);
  EXPECT_TRUE(starts.ok()) << starts.status();
  return starts.value_or(std::vector<RemoteStart>(2));
}

// What is typed on each host has nothing random.
TEST(PlanHosts, LetsHostsMeetThatAreGivenTheirPlaceByHand) {
  const HostJob job = Job({"--hostfile=h", "--node_rank=1", "--auth=none", "t.py"});
  EXPECT_EQ(job.node_rank, 1);
  const auto starts = Plan({"--hostfile=h", "--node_rank=1", "t.py"});
  EXPECT_THAT(starts[1].arguments, Contains("--master_addr=10.0.0.1"));
  EXPECT_THAT(starts[1].arguments,
              Not(Contains(AnyOf(StartsWith("--rdzv_id"), StartsWith("--master_port"),
                                 StartsWith("--node_rank")))));
  EXPECT_THAT(starts[1].environment, Contains(Pair("MUSTER_HOSTFILE_RANK", "1")));
}

TEST(PlanHosts, GivesEachHostItsWorkersAndOneMeetingPlace) {
  const auto starts = Plan({"--hostfile=h", "train.py", "--lr", "1"});
  EXPECT_THAT(
      starts[0].arguments,
      ElementsAre("--rdzv_id=hosts-1", "--master_addr=10.0.0.1", StartsWith("--master_port="),
                  "--nproc_per_node=2", "--console=prefix", "--omp_threads=none", "--", "train.py",
                  "--local_rank=${local_rank}", "--lr", "1"));
  EXPECT_THAT(starts[1].arguments, Contains("--nproc_per_node=gpu:1"));
  EXPECT_EQ(starts[0].directory, "/home/me");
  EXPECT_THAT(starts[1].environment, Contains(Pair("CROSS_RANK", "1")));
  EXPECT_THAT(starts[1].environment, Contains(Pair("CROSS_SIZE", "2")));
  EXPECT_THAT(starts[1].environment, Contains(Pair("LOCAL_SIZE", "1")));
  EXPECT_THAT(starts[0].environment, Contains(Pair("CUDA_VISIBLE_DEVICES", "0,1")));
  EXPECT_THAT(starts[1].environment, Not(Contains(Key("CUDA_VISIBLE_DEVICES"))));
}

TEST(PlanHosts, MakesAnAgentThatKnowsItsPlace) {
  const auto starts = Plan({"--hostfile=h", "train.py"});
  const EnvironmentMap& environment = starts[1].environment;
  const auto found =
      FindScheduler({.environment = environment, .read_file = [](auto&) { return ""; }});
  const auto parsed = ParseFlags(starts[1].arguments, environment, "fresh", found);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const RunFlags& flags = std::get<RunFlags>(*parsed);
  EXPECT_EQ(flags.spec.max_nodes, 2);
  EXPECT_EQ(flags.spec.node_rank, 1);
  EXPECT_EQ(flags.spec.endpoint.host, "10.0.0.1");
  EXPECT_EQ(flags.placement.node_name, "b");
  EXPECT_TRUE(flags.placement.shares_console);
  EXPECT_EQ(flags.spec.program.name, "train.py");
  EXPECT_THAT(flags.spec.program.args, ElementsAre("--local_rank=${local_rank}"));
}

TEST(PlanHosts, LetsOptionsWin) {
  const auto starts = Plan({"-H", "h", "--no_local_rank", "--master_addr=x", "--master_port=5",
                            "--rdzv_id=j", "--nproc_per_node=3", "--omp_threads=2", "--console=raw",
                            "--fold", "-m", "pkg.train", "--", "-x"});
  EXPECT_THAT(
      starts[0].arguments,
      ElementsAre("--console=raw", "--fold", "--master_addr=x", "--master_port=5", "--module",
                  "--nproc_per_node=3", "--omp_threads=2", "--rdzv_id=j", "--", "pkg.train", "-x"));
}

TEST(PlanHosts, SendsWhatDeepSpeedSends) {
  const auto starts =
      Plan({"--hostfile=h", "train.py"}, {.directory = "/d",
                                          .environment = {{"NCCL_DEBUG", "INFO"},
                                                          {"ACCELERATE_MIXED_PRECISION", "bf16"},
                                                          {"PYTHONPATH", "p"},
                                                          {"HOME", "/root"},
                                                          {"CUDA_VISIBLE_DEVICES", "1"}},
                                          .deepspeed_env = "A=1\n# no\nB=x=y\n\n",
                                          .token = "secret"});
  const EnvironmentMap& sent = starts[0].environment;
  EXPECT_THAT(sent, Contains(Pair("NCCL_DEBUG", "INFO")));
  EXPECT_THAT(sent, Contains(Pair("ACCELERATE_MIXED_PRECISION", "bf16")));
  EXPECT_THAT(sent, Contains(Pair("PYTHONPATH", "p")));
  EXPECT_THAT(sent, Contains(Pair("A", "1")));
  EXPECT_THAT(sent, Contains(Pair("B", "x=y")));
  EXPECT_THAT(sent, Contains(Pair("MUSTER_TOKEN", "secret")));
  EXPECT_THAT(sent, Not(Contains(Key("HOME"))));
  EXPECT_THAT(sent, Contains(Pair("CUDA_VISIBLE_DEVICES", "0,1")));  // of the file, not ours
  EXPECT_THAT(PlanHosts(Job({"--hostfile=h", "t.py"}), TwoHosts(), {.deepspeed_env = "A=1\nB\n"})
                  .status()
                  .message(),
              HasSubstr(".deepspeed_env, line 2: 'B'"));
}

TEST(MakeHostJob, RefusesWhatContradictsAHostFile) {
  EXPECT_THAT(WhyNot({"--hostfile=h", "--nnodes=2", "t.py"}),
              HasSubstr("--nnodes=2: --hostfile decides"));
  EXPECT_THAT(ParseFlags({"--hostfile=h", "t.py"}, {{"PET_NODE_RANK", "1"}}).status().message(),
              HasSubstr("PET_NODE_RANK=1: --hostfile decides"));
  EXPECT_THAT(WhyNot({"--hostfile=h"}), HasSubstr("no script"));
  EXPECT_THAT(WhyNot({"--hostfile=h", "--ilab=i", "t.py"}), HasSubstr("--ilab=i: --hostfile"));
  EXPECT_THAT(WhyNot({"--hostfile=h", "--num_nodes=x", "t.py"}), HasSubstr("--num_nodes=x"));
  EXPECT_THAT(Job({"--hostfile=h", "t.py"}).options, ElementsAre("--omp_threads=none"));
}

TEST(RemoteStart, CarriesAnyByteAsOneLine) {
  const RemoteStart start{.directory = "/a b",
                          .arguments = {"--x=$(touch y)", "'\"\n\\", "\xff\xfe", ""},
                          .environment = {{"A", "x=y\nz"}, {"EMPTY", ""}}};
  const std::string line = EncodeRemoteStart(start);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto decoded = DecodeRemoteStart(line);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(*decoded == start);
}

TEST(RemoteStart, RefusesWhatItDidNotWrite) {
  for (const char* line :
       {"", "hello", "muster-start-1", "muster-start-1 d2", "muster-start-1 d2f a0g",
        "muster-start-1 d2f e41", "muster-start-1 d2f x41", "muster-start-1 d2f a00"}) {
    EXPECT_FALSE(DecodeRemoteStart(line).ok()) << line;
  }
}

}  // namespace
}  // namespace muster::launcher
