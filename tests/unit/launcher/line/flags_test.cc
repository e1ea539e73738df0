#include "launcher/line/flags.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

using Args = std::vector<std::string>;

// `args` with a script behind them.
RunFlags Parse(Args args, const EnvironmentMap& environment = {}) {
  args.push_back("train.py");
  auto flags = ParseFlags(args, environment, "fresh-id");
  EXPECT_TRUE(flags.ok()) << flags.status();
  return flags.ok() ? std::get<RunFlags>(*flags) : RunFlags{};
}

std::string Message(Args args, const EnvironmentMap& environment = {}) {
  args.push_back("train.py");
  const absl::Status status = ParseFlags(args, environment).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ParseFlags, GivesTheDefaultsOfJobSpec) {
  JobSpec expected;
  expected.run_id = "fresh-id";
  expected.program.name = "train.py";
  expected.node_rank = 0;
  EXPECT_TRUE(Parse({}).spec == expected);
  EXPECT_THAT(Parse({}).warnings, IsEmpty());
}

TEST(ParseFlags, FillsEveryFieldOfTheSpec) {
  const JobSpec spec = Parse({"--nnodes=2:4",
                              "--nproc_per_node=8",
                              "--rdzv_backend=c10d",
                              "--rdzv_endpoint=h:1",
                              "--rdzv_id=j",
                              "--rdzv_conf=join_timeout=5,is_host=0",
                              "--max_restarts=3",
                              "--scale_up=never",
                              "--monitor_interval=0.5",
                              "--role=r",
                              "--log_dir=/l",
                              "-r",
                              "1",
                              "-t",
                              "0:2",
                              "--local_ranks_filter=0",
                              "--duplicate_stdout_filters=a,b",
                              "--node_rank=1",
                              "--local_addr=10.0.0.2",
                              "--local_cache=/nvme",
                              "--numa_binding=node",
                              "--signals_to_handle=TERM",
                              "--left_exit_code=76",
                              "--shutdown_timeout=5",
                              "--watch=report",
                              "--hang_timeout=120",
                              "--virtual_local_rank",
                              "--console=rank0",
                              "--fold",
                              "--worker_ports=30000-30100",
                              "--store_clients=nodes",
                              "--tls=off",
                              "--log_line_prefix_template=${rank}"})
                           .spec;
  EXPECT_EQ(spec.min_nodes, 2);
  EXPECT_EQ(spec.max_nodes, 4);
  EXPECT_EQ(spec.nproc_per_node.count, 8);
  EXPECT_EQ(spec.backend, RendezvousBackend::kC10d);
  EXPECT_EQ(spec.endpoint, (Endpoint{"h", 1}));
  EXPECT_EQ(spec.run_id, "j");
  EXPECT_EQ(spec.join_timeout, absl::Seconds(5));
  EXPECT_EQ(spec.is_host, false);
  EXPECT_EQ(spec.max_restarts, 3);
  EXPECT_EQ(spec.scale_up, ScaleUp::kNever);
  EXPECT_EQ(spec.store_clients, StoreClients::kNodes);
  EXPECT_EQ(spec.monitor_interval_s, 0.5);
  EXPECT_EQ(spec.role, "r");
  EXPECT_EQ(spec.logs.log_dir, "/l");
  EXPECT_EQ(spec.logs.redirects.all, StreamSet::kStdout);
  EXPECT_EQ(spec.logs.tee.For(0), StreamSet::kStderr);
  EXPECT_THAT(spec.logs.local_ranks_filter, ElementsAre(0));
  EXPECT_THAT(spec.logs.duplicate_stdout_filters, ElementsAre("a", "b"));
  EXPECT_EQ(spec.node_rank, 1);
  EXPECT_EQ(spec.network.local_addr, "10.0.0.2");
  EXPECT_EQ(spec.program.local_cache, "/nvme");
  EXPECT_EQ(spec.numa_binding, NumaBinding::kNode);
  EXPECT_THAT(spec.signals_to_handle, ElementsAre(SIGTERM));
  EXPECT_EQ(spec.left_exit_code, 76);
  EXPECT_EQ(spec.shutdown_timeout, absl::Seconds(5));
  EXPECT_EQ(spec.watch, WatchMode::kReport);
  EXPECT_EQ(spec.hang_timeout, absl::Seconds(120));
  EXPECT_TRUE(spec.virtual_local_rank);
  EXPECT_EQ(spec.logs.console, ConsoleMode::kRank0);
  EXPECT_TRUE(spec.logs.fold);
  EXPECT_EQ(spec.worker_ports, (PortRange{30000, 30100}));
  EXPECT_FALSE(spec.tls);
  EXPECT_EQ(spec.logs.line_prefix_template, "${rank}");
}

TEST(ParseFlags, RefusesSeveralNodesWithoutAnEndpoint) {
  for (const char* backend : {"static", "c10d", "muster"}) {
    EXPECT_EQ(Message({"--nnodes=2", std::string("--rdzv_backend=") + backend}),
              "--nnodes=2: needs --rdzv_endpoint=HOST[:PORT] (or --master_addr) so that the nodes "
              "can find each other");
  }
}

TEST(ParseFlags, GivesEachBackendItsDefaultPort) {
  EXPECT_EQ(Parse({"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=h"}).spec.endpoint,
            (Endpoint{"h", 29400}));
  EXPECT_EQ(Parse({"--nnodes=2", "--rdzv_endpoint=h", "--master_port=7"}).spec.endpoint,
            (Endpoint{"h", 7}));
}

// torchrun's static back end refuses it.
TEST(ParseFlags, GivesABareHostTheDefaultPort) {
  EXPECT_EQ(Parse({"--nnodes=2", "--rdzv_endpoint=h"}).spec.endpoint, (Endpoint{"h", 29400}));
  EXPECT_EQ(Parse({"--rdzv_endpoint=h"}).spec.worker_master_port, 29400);
}

TEST(ParseFlags, TakesTheMasterForTheEndpointOfSeveralNodes) {
  EXPECT_EQ(Parse({"--nnodes=2", "--master_addr=h", "--master_port=7"}).spec.endpoint,
            (Endpoint{"h", 7}));
  EXPECT_EQ(Parse({"--nnodes=2", "--master_addr=h"}).spec.endpoint, (Endpoint{"h", 29500}));
  EXPECT_EQ(Parse({"--nnodes=2", "--rdzv_backend=c10d", "--master_addr=h"}).spec.endpoint,
            (Endpoint{"h", 29400}));
  EXPECT_EQ(Parse({"--nnodes=2", "--master_addr=[::1]"}).spec.endpoint, (Endpoint{"::1", 29500}));
}

TEST(ParseFlags, SaysThatTheEndpointWinsOverTheMaster) {
  const RunFlags flags = Parse({"--nnodes=2", "--master_addr=a", "--rdzv_endpoint=b:1"});
  EXPECT_EQ(flags.spec.endpoint, (Endpoint{"b", 1}));
  EXPECT_THAT(flags.warnings, ElementsAre(HasSubstr("--master_addr=a is ignored")));
}

TEST(ParseFlags, TakesTheMasterForWhatTheWorkersOfOneNodeSee) {
  const JobSpec spec = Parse({"--master_addr=localhost", "--master_port=29501"}).spec;
  EXPECT_EQ(spec.worker_master_addr, "localhost");
  EXPECT_EQ(spec.worker_master_port, 29501);
  EXPECT_EQ(spec.endpoint, Endpoint{});
  const JobSpec with_endpoint = Parse({"--rdzv_endpoint=localhost:29501"}).spec;
  EXPECT_EQ(with_endpoint.worker_master_addr, "localhost");
  EXPECT_EQ(with_endpoint.worker_master_port, 29501);
}

TEST(ParseFlags, KeepsTheEndpointOfAOneNodeRendezvous) {
  EXPECT_EQ(Parse({"--rdzv_backend=c10d", "--rdzv_endpoint=h:29400"}).spec.endpoint,
            (Endpoint{"h", 29400}));
  EXPECT_EQ(Parse({"--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"}).spec.endpoint,
            Endpoint{});
}

// Source: Kubeflow Trainer, pkg/runtime/framework/plugins/torch.
TEST(ParseFlags, UnderstandsWhatKubeflowSets) {
  const JobSpec spec = Parse({}, {{"PET_NNODES", "4"},
                                  {"PET_NPROC_PER_NODE", "auto"},
                                  {"PET_NODE_RANK", "3"},
                                  {"PET_MASTER_ADDR", "job-node-0-0.job"},
                                  {"PET_MASTER_PORT", "29500"}})
                           .spec;
  EXPECT_EQ(spec.max_nodes, 4);
  EXPECT_EQ(spec.nproc_per_node.kind, ProcessesPerNode::Kind::kAuto);
  EXPECT_EQ(spec.node_rank, 3);
  EXPECT_EQ(spec.endpoint, (Endpoint{"job-node-0-0.job", 29500}));
}

// Source: TorchX, components/dist.py.
TEST(ParseFlags, UnderstandsWhatTorchxWrites) {
  const JobSpec spec =
      Parse({"--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "--rdzv_id", "app-1",
             "--nnodes", "1", "--nproc_per_node", "2", "--tee", "3", "--role", ""})
          .spec;
  EXPECT_EQ(spec.role, "");
  EXPECT_EQ(spec.logs.tee.all, StreamSet::kBoth);
  EXPECT_EQ(spec.run_id, "app-1");
}

TEST(ParseFlags, GivesStandaloneAFreshId) {
  const RunFlags flags = Parse({"--standalone", "--nproc_per_node=2"});
  EXPECT_EQ(flags.spec.run_id, "fresh-id");
  EXPECT_EQ(flags.spec.endpoint, Endpoint{});
  EXPECT_THAT(flags.warnings, IsEmpty());
}

TEST(ParseFlags, SaysWhatStandaloneOverrules) {
  const RunFlags flags =
      Parse({"--standalone", "--rdzv_id=x", "--rdzv_endpoint=node9:1", "--rdzv_backend=etcd"});
  EXPECT_EQ(flags.spec.run_id, "fresh-id");
  EXPECT_EQ(flags.spec.endpoint, Endpoint{});
  EXPECT_THAT(flags.warnings, ElementsAre(HasSubstr("--rdzv_backend=etcd is ignored"),
                                          HasSubstr("--rdzv_endpoint=node9:1 is ignored"),
                                          HasSubstr("--rdzv_id=x is ignored")));
}

TEST(ParseFlags, RefusesStandaloneOnSeveralNodes) {
  EXPECT_THAT(Message({"--standalone", "--nnodes=2"}),
              StartsWith("--nnodes=2: --standalone is for"));
}

TEST(ParseFlags, MakesAStaticRangeWaitForAllWithAWarning) {
  const RunFlags flags = Parse({"--nnodes=1:2", "--master_addr=h"});
  EXPECT_EQ(flags.spec.min_nodes, 2);
  EXPECT_THAT(flags.warnings, ElementsAre(HasSubstr("add --rdzv_backend=c10d")));
}

TEST(ParseFlags, LeavesTheNodeRankOpenUnlessTheJobIsStatic) {
  EXPECT_EQ(Parse({"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=h"}).spec.node_rank,
            std::nullopt);
  EXPECT_EQ(Parse({"--nnodes=2", "--rdzv_endpoint=h:1"}).spec.node_rank, 0);
  EXPECT_EQ(Parse({"--nnodes=2", "--rdzv_endpoint=h:1", "--rdzv_conf=rank=1"}).spec.node_rank, 1);
}

TEST(ParseFlags, RefusesANodeRankOutsideTheJobWithEveryBackend) {
  for (const char* backend : {"static", "c10d"}) {
    const Args several = {"--nnodes=2", "--rdzv_endpoint=h:1",
                          std::string("--rdzv_backend=") + backend};
    for (const char* rank : {"-1", "2"}) {
      Args args = several;
      args.push_back(std::string("--node_rank=") + rank);
      EXPECT_THAT(Message(args),
                  StartsWith(std::string("--node_rank=") + rank + ": expected 0 to 1"));
    }
  }
}

TEST(ParseFlags, IgnoresTheNodeRankOfAJobOnOneNodeWithAWarning) {
  const RunFlags flags = Parse({"--node_rank=3"});
  EXPECT_EQ(flags.spec.node_rank, 0);
  EXPECT_THAT(flags.warnings, ElementsAre(HasSubstr("--node_rank=3 has no effect")));
  EXPECT_THAT(Parse({}, {{"PET_NODE_RANK", "2"}}).warnings,
              ElementsAre(HasSubstr("PET_NODE_RANK=2 has no effect")));
}

TEST(ParseFlags, GivesAJobOnOneNodeAFreshIdUnlessItHasAPlaceOrAName) {
  EXPECT_EQ(Parse({}).spec.run_id, "fresh-id");
  EXPECT_EQ(Parse({"--rdzv_id=mine"}).spec.run_id, "mine");
  for (const char* place : {"--master_port=5", "--rdzv_endpoint=h:5", "--rdzv_backend=c10d"}) {
    EXPECT_EQ(Parse({place}).spec.run_id, "none") << place;
  }
}

TEST(ParseFlags, PrefersJoinTimeoutToTheOlderTimeout) {
  EXPECT_EQ(Parse({"--rdzv_conf=timeout=900"}).spec.join_timeout, absl::Seconds(900));
  EXPECT_EQ(Parse({"--rdzv_conf=join_timeout=5,timeout=900"}).spec.join_timeout, absl::Seconds(5));
}

TEST(ParseFlags, WarnsOfConfigurationWithoutEffect) {
  EXPECT_THAT(Parse({"--rdzv_conf=keep_alive_interval=5"}).warnings,
              ElementsAre(HasSubstr("--rdzv_conf keep_alive_interval has no effect")));
}

TEST(ParseFlags, KeepsScriptArgumentsByteForByte) {
  auto flags =
      ParseFlags({"--nproc_per_node=2", "t.py", "$$", "${local_rank}", "--nnodes=9", "--d"}, {});
  ASSERT_TRUE(flags.ok());
  EXPECT_THAT(std::get<RunFlags>(*flags).spec.program.args,
              ElementsAre("$$", "${local_rank}", "--nnodes=9", "--d"));
}

TEST(ParseFlags, ReadsTheKindOfProgram) {
  EXPECT_EQ(Parse({"-m"}).spec.program.kind, Program::Kind::kModule);
  EXPECT_EQ(Parse({"--no_python"}).spec.program.kind, Program::Kind::kNoPython);
  EXPECT_THAT(Message({"--no_python", "-m"}), HasSubstr("--no_python and --module"));
}

TEST(ParseFlags, LetsRunPathWin) {
  const Program program = Parse({"--run_path", "--no_python", "-m"}).spec.program;
  EXPECT_EQ(program.kind, Program::Kind::kScript);
  EXPECT_TRUE(program.run_path);
}

TEST(ParseFlags, ShowsTheUsageWithoutAScript) {
  const absl::Status status = ParseFlags({"--nnodes=1"}, {}).status();
  EXPECT_THAT(status.message(), HasSubstr("no script was given; usage: muster run"));
}

TEST(ParseFlags, AcceptsTheValuesOfOptionsWithoutCounterpart) {
  for (const char* accepted :
       {"--start_method=spawn", "--start_method=fork", "--start_method=forkserver",
        "--event_log_handler=null", "--event-log-handler=console", "--logs_specs=default",
        "--use-env"}) {
    EXPECT_THAT(Parse({accepted}).warnings, IsEmpty()) << accepted;
  }
  EXPECT_THAT(Message({"--start_method=threads"}),
              StartsWith("--start_method=threads: expected spawn, fork or forkserver; "));
  EXPECT_THAT(Message({"--event_log_handler=mine"}), HasSubstr("plug-ins are not loaded"));
  EXPECT_THAT(Message({"--logs_specs=mine"}), StartsWith("--logs_specs=mine: expected default; "));
}

// What torchrun answers with a traceback or not at all.
TEST(ParseFlags, NamesOptionAndValueOfEachBadValue) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"--nnodes=a:b", "expected N or MIN:MAX"},
      {"--nnodes=4:2", "0 < MIN <= MAX"},
      {"--max_restarts=-1", "expected 0 or more"},
      {"--max_restarts=x", "expected a whole number"},
      {"--scale_up=always", "expected"},
      {"--left_exit_code=256", "expected an exit code, 0 to 255"},
      {"--store_clients=none", "expected"},
      {"--nproc_per_node=tpu", "expected a number, auto, cpu, gpu"},
      {"--nproc_per_node=0", "expected 1 to 4096"},
      {"--local_ranks_filter=a", "expected local ranks"},
      {"--redirects=5", "expected 0 (none)"},
      {"--tee=0:9", "expected 0 (none)"},
      {"--shutdown_timeout=-1", "expected 0 or more seconds"},
      {"--watch=kill", "expected auto, off, report, restart or replace"},
      {"--hang_timeout=0", "must be longer than 0"},
      {"--round_hook_timeout=0", "must be longer than 0"},
      {"--node_check_timeout=0", "must be longer than 0"},
      {"--rdzv_conf=timeout", "'timeout' is not of the form KEY=VALUE"},
      {"--rdzv_conf=joint=1", "unknown key 'joint'"},
      {"--rdzv_backend=foo", "expected static, c10d or muster"},
      {"--rdzv_backend=etcd", "not in this version"},
      {"--rdzv_backend=etcd-v2", "gone"},
      {"--rdzv_endpoint=a:99999", "'99999' is not a port"},
      {"--rdzv_endpoint=http://a", "expected HOST[:PORT]"},
      {"--master_port=70000", "expected a port"},
      {"--master_addr=a b", "is neither a host name"},
      {"--local_addr=a b", "is neither a host name"},
      {"--signals_to_handle=SIGFOO", "'SIGFOO' is not a signal"},
      {"--monitor_interval=0", "more than 0"},
      {"--numa_binding=nodes", "expected node, socket"},
      {"--auth=open", "expected secret or none"},
      {"--console=some", "expected auto, raw, prefix, rank0 or none"},
      {"--worker_ports=5", "expected A-B"},
      {"--tls=maybe", "expected 1 or 0"},
      {"--log_format=xml", "expected text or json"},
      {"--log_level=loud", "expected debug, info"},
      {"--duplicate_stdout_filters=a,", "empty filter"},
      {"--rdzv_id=", "a job needs a name"},
  };
  for (const auto& [arg, expected] : rows) {
    const std::string message = Message({arg});
    const std::string option = arg.substr(0, arg.find('='));
    EXPECT_THAT(message, StartsWith(option)) << arg;
    EXPECT_THAT(message, HasSubstr(expected)) << arg;
  }
}

TEST(ParseFlags, NamesTheVariableOfABadValue) {
  EXPECT_THAT(Message({}, {{"PET_NNODES", "x"}}), StartsWith("PET_NNODES=x: expected N"));
  EXPECT_EQ(Message({}, {{"PET_MAX_RESTARTS", "-1"}}),
            "--max_restarts=-1: expected 0 or more (from PET_MAX_RESTARTS)");
}

TEST(ParseFlags, AcceptsLocalRanksOfTwoDigits) {
  EXPECT_EQ(Parse({"-t", "0:1,11:3"}).spec.logs.tee.For(11), StreamSet::kBoth);
}

TEST(ParseFlags, PrintsHelpAndVersionWithoutAScript) {
  for (const char* option : {"--help", "-h", "--version"}) {
    auto flags = ParseFlags({option}, {});
    ASSERT_TRUE(flags.ok()) << flags.status();
    EXPECT_FALSE(std::get<PrintAndExit>(*flags).text.empty());
  }
}

}  // namespace
}  // namespace muster::launcher
