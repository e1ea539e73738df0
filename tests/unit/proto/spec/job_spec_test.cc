#include "proto/spec/job_spec.h"

#include <csignal>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

JobSpec OneNode() {
  JobSpec spec;
  spec.program.name = "train.py";
  return spec;
}

JobSpec FourNodes() {
  JobSpec spec = OneNode();
  spec.backend = RendezvousBackend::kC10d;
  spec.min_nodes = spec.max_nodes = 4;
  spec.endpoint = {.host = "node1", .port = 29400};
  return spec;
}

// The message with which `spec` is refused after `change`.
std::string Refusal(JobSpec spec, const std::function<void(JobSpec&)>& change) {
  change(spec);
  const absl::Status status = spec.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(JobSpecValidate, AcceptsDefaultsWithAProgram) {
  EXPECT_EQ(OneNode().Validate(), absl::OkStatus());
  EXPECT_EQ(FourNodes().Validate(), absl::OkStatus());
}

TEST(JobSpecValidate, RefusesAnEmptyProgram) {
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.program.name = ""; }), HasSubstr("no script"));
}

TEST(JobSpecValidate, RefusesNodeCountsThatAreEmptyOrTurnedAround) {
  EXPECT_THAT(Refusal(FourNodes(), [](JobSpec& s) { s.min_nodes = 0; }),
              StartsWith("--nnodes=0:4: "));
  EXPECT_THAT(Refusal(FourNodes(), [](JobSpec& s) { s.min_nodes = 5; }),
              StartsWith("--nnodes=5:4: "));
  EXPECT_THAT(Refusal(FourNodes(), [](JobSpec& s) { s.max_nodes = 1 << 30; }),
              StartsWith("--nnodes="));
}

TEST(JobSpecValidate, RefusesSeveralNodesThatCannotFindEachOther) {
  EXPECT_EQ(
      Refusal(FourNodes(), [](JobSpec& s) { s.endpoint = {}; }),
      "--nnodes=4: needs --rdzv_endpoint=HOST[:PORT] (or --master_addr) so that the nodes can "
      "find each other");
  EXPECT_THAT(Refusal(FourNodes(), [](JobSpec& s) { s.endpoint.port = 0; }),
              StartsWith("--rdzv_endpoint=node1:0: "));
  EXPECT_THAT(Refusal(FourNodes(), [](JobSpec& s) { s.endpoint.host = "no de"; }),
              StartsWith("--rdzv_endpoint=no de: "));
}

TEST(JobSpecValidate, RefusesANodeRankOutsideTheJob) {
  EXPECT_THAT(Refusal(FourNodes(), [](JobSpec& s) { s.node_rank = 4; }),
              StartsWith("--node_rank=4: expected 0 to 3"));
  EXPECT_THAT(Refusal(FourNodes(), [](JobSpec& s) { s.node_rank = -1; }),
              StartsWith("--node_rank=-1: "));
}

TEST(JobSpecValidate, RefusesStaticJobsWithARangeOrWithoutNodeRank) {
  EXPECT_THAT(Refusal(FourNodes(), [](JobSpec& s) { s.backend = RendezvousBackend::kStatic; }),
              HasSubstr("--node_rank"));
  EXPECT_THAT(Refusal(FourNodes(),
                      [](JobSpec& s) {
                        s.backend = RendezvousBackend::kStatic;
                        s.node_rank = 0;
                        s.min_nodes = 2;
                      }),
              StartsWith("--nnodes=2:4: a range needs"));
}

TEST(JobSpecValidate, RefusesEtcdByName) {
  EXPECT_THAT(Refusal(FourNodes(), [](JobSpec& s) { s.backend = RendezvousBackend::kEtcd; }),
              StartsWith("--rdzv_backend=etcd: not in this version"));
}

TEST(JobSpecValidate, RefusesWorkerCountsOutOfRange) {
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.nproc_per_node.count = 0; }),
              StartsWith("--nproc_per_node=0: "));
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.nproc_per_node.count = 4097; }),
              StartsWith("--nproc_per_node=4097: expected 1 to 4096"));
}

TEST(JobSpecValidate, RefusesAGpuNamedTwice) {
  EXPECT_THAT(
      Refusal(
          OneNode(),
          [](JobSpec& s) {
            s.nproc_per_node = {.kind = ProcessesPerNode::Kind::kGpuList, .gpus = {"1", "3", "1"}};
          }),
      HasSubstr("GPU 1 is named twice"));
}

TEST(JobSpecValidate, RefusesRunIdsThatAreEmptyLongOrUnprintable) {
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.run_id = ""; }), StartsWith("--rdzv_id="));
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.run_id = std::string(257, 'x'); }),
              HasSubstr("257 bytes"));
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.run_id = "a\nb"; }),
              StartsWith("--rdzv_id=a\\nb: "));
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.run_id = "../up"; }), HasSubstr("'/'"));
  JobSpec longest = OneNode();
  longest.run_id = std::string(256, 'x');
  EXPECT_EQ(longest.Validate(), absl::OkStatus());
}

TEST(JobSpecValidate, RefusesTimesThatAreNegativeOrEndless) {
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.join_timeout = absl::ZeroDuration(); }),
              StartsWith("--rdzv_conf join_timeout=0: "));
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.read_timeout = absl::InfiniteDuration(); }),
              StartsWith("--rdzv_conf read_timeout=inf: "));
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.shutdown_timeout = absl::Seconds(-1); }),
              StartsWith("--shutdown_timeout=-1s: "));
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.monitor_interval_s = 0; }),
              StartsWith("--monitor_interval=0: "));
}

TEST(JobSpecValidate, RefusesALeaseThatEndsBeforeItsRenewal) {
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.lease.duration = absl::Seconds(2); }),
              StartsWith("--rdzv_conf lease=2s: must be longer than renew_interval=2s"));
}

TEST(JobSpecValidate, AllowsNoGraceAndNoLastCall) {
  JobSpec spec = OneNode();
  spec.shutdown_timeout = spec.last_call_timeout = absl::ZeroDuration();
  EXPECT_EQ(spec.Validate(), absl::OkStatus());
}

TEST(JobSpecValidate, RefusesNegativeRestartsCodesNoProcessHasAndSignalsNobodyCanHandle) {
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.max_restarts = -1; }),
              StartsWith("--max_restarts=-1: "));
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.left_exit_code = -1; }),
              StartsWith("--left_exit_code=-1: "));
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.signals_to_handle = {SIGKILL}; }),
              StartsWith("--signals_to_handle=9: "));
}

TEST(JobSpecValidate, RefusesPortRangesThatAreTooSmall) {
  EXPECT_THAT(Refusal(OneNode(),
                      [](JobSpec& s) {
                        s.nproc_per_node.count = 4;
                        s.worker_ports = {.first = 30000, .last = 30003};
                      }),
              StartsWith("--worker_ports=30000-30003: has 4 ports; 5 are needed"));
  EXPECT_THAT(Refusal(OneNode(), [](JobSpec& s) { s.worker_ports = {.first = 9, .last = 5}; }),
              StartsWith("--worker_ports=9-5: expected A-B"));
}

TEST(JobSpecValidate, RefusesEmptyFilters) {
  EXPECT_THAT(Refusal(OneNode(),
                      [](JobSpec& s) {
                        s.logs.duplicate_stderr_filters = {"a", ""};
                      }),
              StartsWith("--duplicate_stderr_filters="));
}

TEST(IsHost, AcceptsNamesAddressesAndLiteralsWithZones) {
  for (const char* host : {"node-1.rack_2", "10.0.0.1", "::1", "fe80::1%eth0"}) {
    EXPECT_TRUE(IsHost(host)) << host;
  }
  for (const char* text : {"", "a b", "http://x", "a:b", "[::1]", "x;y"}) {
    EXPECT_FALSE(IsHost(text)) << text;
  }
}

TEST(EndpointToString, BracketsIpv6Literals) {
  EXPECT_EQ(ToString(Endpoint{"node1", 29400}), "node1:29400");
  EXPECT_EQ(ToString(Endpoint{"::1", 29400}), "[::1]:29400");
}

TEST(StreamSelection, FallsBackToTheValueForAllRanks) {
  StreamSelection selection;
  EXPECT_FALSE(selection.Any());
  selection.by_local_rank[11] = StreamSet::kBoth;
  EXPECT_TRUE(selection.Any());
  EXPECT_EQ(selection.For(11), StreamSet::kBoth);
  EXPECT_EQ(selection.For(1), StreamSet::kNone);
}

TEST(MakeRendezvousSettings, TakesWhatAllNodesMustAgreeOn) {
  JobSpec spec = FourNodes();
  spec.max_restarts = 3;
  spec.join_timeout = absl::Seconds(7);
  const RendezvousSettings settings = MakeRendezvousSettings(spec);
  EXPECT_EQ(settings.min_nodes, 4);
  EXPECT_EQ(settings.max_restarts, 3);
  EXPECT_EQ(settings.join_timeout, absl::Seconds(7));
  EXPECT_FALSE(settings.is_static);
}

// The structured bindings name every field: one that is added fails to compile here, where it is
// said whether all nodes must agree on it or each may have its own.
TEST(MakeRendezvousSettings, TakesEveryFieldThatIsNotANodesOwn) {
  JobSpec spec = FourNodes();
  auto& [run_id, role, min_nodes, max_nodes, nproc_per_node, backend, endpoint, node_rank, network,
         worker_master_port, worker_master_addr, worker_ports, store_clients, is_host, tls,
         authentication, join_timeout, last_call_timeout, close_timeout, read_timeout,
         orphan_timeout, lease, max_restarts, scale_up, left_exit_code, shutdown_timeout, watch,
         hang_timeout, signals_to_handle, monitor_interval_s, program, node_programs,
         virtual_local_rank, numa_binding, omp_threads, logs] = spec;
  const std::function<void(JobSpec&)> agreed[] = {
      [](JobSpec& s) { s.min_nodes = 1; },
      [](JobSpec& s) { s.max_nodes = 5; },
      [](JobSpec& s) { s.max_restarts = 1; },
      [](JobSpec& s) { s.backend = RendezvousBackend::kStatic; },
      [](JobSpec& s) { s.join_timeout = absl::Seconds(1); },
      [](JobSpec& s) { s.last_call_timeout = absl::Seconds(1); },
      [](JobSpec& s) { s.close_timeout = absl::Seconds(1); },
      [](JobSpec& s) { s.orphan_timeout = absl::Seconds(1); },
      [](JobSpec& s) { s.left_exit_code = 76; },
      [](JobSpec& s) { s.shutdown_timeout = absl::Seconds(1); },
      [](JobSpec& s) { s.scale_up = ScaleUp::kNever; }};
  const RendezvousSettings settings = MakeRendezvousSettings(spec);
  for (const auto& change : agreed) {
    JobSpec other = spec;
    change(other);
    EXPECT_NE(MakeRendezvousSettings(other), settings) << (&change - &agreed[0]);
  }
  // Who differs in these meets another job, or nobody: the hand-shake tells.
  run_id = "other";
  endpoint.port = 1;
  tls = authentication = false;
  lease.duration = absl::Seconds(1);  // the server's counts, and an agent that has another says so
  // These are of the server's or the store's node alone.
  is_host = true;
  store_clients = StoreClients::kNodes;
  // A node that asks for it gets it, whatever the others ask for.
  network.kind = NetworkUse::Kind::kRequire;
  watch = WatchMode::kOff;
  hang_timeout = read_timeout = absl::Seconds(1);
  role = worker_master_addr = "other";
  nproc_per_node.count = 7;
  node_rank = worker_master_port = worker_ports.first = 1;
  signals_to_handle = {1};
  monitor_interval_s = 7;
  program.name = node_programs.check.program = logs.log_dir = "other";
  virtual_local_rank = true;
  numa_binding = NumaBinding::kNode;
  omp_threads.count = 7;
  EXPECT_EQ(MakeRendezvousSettings(spec), settings);
}

}  // namespace
}  // namespace muster
