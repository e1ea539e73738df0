// What a user asked for: the only home of the configuration of a launch and of its defaults.
//
// Made by launcher/line/flags.cc `ParseFlags` from the command line and PET_* variables; components
// get small settings made from it (`MakeRendezvousSettings`).
//
// Pure values.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/endpoint.h"
#include "proto/base/membership.h"
#include "proto/spec/node_programs.h"

namespace muster {

// --nproc_per_node.
struct ProcessesPerNode {
  enum class Kind {
    kCount,    // N
    kAuto,     // GPUs if there are any, else CPUs
    kCpu,      // as many as CPUs this process may use
    kGpu,      // as many as GPUs; an error without one
    kGpuList,  // the GPUs in `gpus`, one worker each
  };
  Kind kind = Kind::kCount;
  int count = 1;
  std::vector<std::string> gpus;  // ids or UUIDs
  friend bool operator==(const ProcessesPerNode&, const ProcessesPerNode&) = default;
};

enum class RendezvousBackend {
  kStatic,  // node ranks are given
  kC10d,    // ours, under the name torchrun's users know
  kMuster,
  kEtcd,  // `endpoint` lists etcd hosts; not in this version
};
// The name on the command line: "static", "c10d", "muster", "etcd".
std::string ToString(RendezvousBackend backend);

// Ports of an endpoint that names none, as in torchrun.
inline constexpr int kDefaultRendezvousPort = 29400;
inline constexpr int kDefaultStaticPort = 29500;

// How the workers' program is started (launcher/README.md, "The script rule").
struct Program {
  enum class Kind {
    kScript,   // the script rule decides between Python and exec
    kModule,   // -m
    kNoPython  // --no_python: exec by PATH
  };
  Kind kind = Kind::kScript;
  std::string name;
  std::vector<std::string> args;  // as given; WorkerArguments fills in the local rank
  bool run_path = false;          // --run_path: accepted; the script is a file run by Python
  // False: the worker of a job of one is told nothing of ranks (EncodeLoneWorkerEnv).
  bool rank_variables = true;
  // Modules that a warm process imports, which then forks workers; "auto" alone: those that the
  // first attempt has imported. Empty: workers are always started afresh.
  std::vector<std::string> warm;
  // The folder for what workers compile at run time (launcher/node/local_cache.h); empty: where
  // each library keeps it.
  std::string local_cache;
  friend bool operator==(const Program&, const Program&) = default;
};

// A node that starts more workers than this has mistyped --nproc_per_node.
inline constexpr int kMaxProcessesPerNode = 4096;

// Which of a worker's streams something applies to; torchrun's codes.
enum class StreamSet { kNone = 0, kStdout = 1, kStderr = 2, kBoth = 3 };
inline bool HasStdout(StreamSet s) { return (static_cast<int>(s) & 1) != 0; }
inline bool HasStderr(StreamSet s) { return (static_cast<int>(s) & 2) != 0; }

// `--redirects` and `--tee`: one value for all local ranks, or a map (absent ranks: none).
struct StreamSelection {
  StreamSet all = StreamSet::kNone;
  std::map<int, StreamSet> by_local_rank;
  StreamSet For(int local_rank) const;
  bool Any() const;
  friend bool operator==(const StreamSelection&, const StreamSelection&) = default;
};

// --console. Every rank's output appears but with kRank0 and kNone.
enum class ConsoleMode {
  kAuto,    // prefixes on a terminal that several workers share, else none
  kRaw,     // no prefixes, whatever else asks for them
  kPrefix,  // prefixes, also in a pipe and for the only worker of a node
  kRank0,   // only the worker that is rank 0 of the job
  kNone,
};
enum class NumaBinding { kNone, kNode, kSocket, kExclusive, kCoreComplex };

struct LogSpec {
  std::string log_dir;  // empty: a fresh directory below the temporary one
  StreamSelection redirects;
  StreamSelection tee;
  std::vector<int> local_ranks_filter;  // empty: all; else only these reach the console
  std::vector<std::string> duplicate_stdout_filters;
  std::vector<std::string> duplicate_stderr_filters;
  ConsoleMode console = ConsoleMode::kAuto;
  bool fold = false;  // identical lines of several ranks appear once, with a count
  // May have ${hostname} ${role_name} ${local_rank} ${rank}; empty: chosen
  // (agent/console/log_routing.h).
  std::string line_prefix_template;
  friend bool operator==(const LogSpec&, const LogSpec&) = default;
};

struct PortRange {
  int first = 0;  // 0: the kernel chooses
  int last = 0;
  friend bool operator==(const PortRange&, const PortRange&) = default;
};

// --omp_threads: OMP_NUM_THREADS of the workers.
struct OmpThreads {
  enum class Kind {
    kUsual,      // 1 each where there are several, their share of the CPUs that a scheduler counts
    kShare,      // their share of this node's CPUs
    kUntouched,  // as inherited, or not set
    kCount,      // `count` each
  };
  Kind kind = Kind::kUsual;
  int count = 0;
  friend bool operator==(const OmpThreads&, const OmpThreads&) = default;
};

// --watch: what follows when workers hang.
enum class WatchMode {
  kAuto,     // kRestart where --max_restarts allows one, else kReport
  kOff,      // nobody looks
  kReport,   // it is said
  kRestart,  // and the attempt is ended, as by a failure
  kReplace,  // and the nodes at fault leave the job, where it can do without them; else kRestart
};

// --store_clients: which clients may use the store where PyTorch's workers meet.
enum class StoreClients {
  kAll,    // anyone who reaches it, as under torchrun
  kNodes,  // clients from an address of a node of the job, except other users of this machine
};

// --network and its kin: how this node meets the others, and what they find out about each other
// before a round.
struct NetworkUse {
  enum class Kind {
    kAuto,     // the interface that leads to the master; a pair of nodes that fails is a warning
    kNamed,    // `interface`; likewise
    kOff,      // nothing is chosen, told to workers or checked
    kRequire,  // as kAuto, but nodes that do not reach each other never run together
  };
  Kind kind = Kind::kAuto;
  std::string interface;
  std::string local_addr;     // the address this node gives to the others; empty: chosen
  bool strict_nodes = false;  // nodes whose software or GPUs differ are refused, not only named
  friend bool operator==(const NetworkUse&, const NetworkUse&) = default;
};

struct JobSpec {
  // The job and its size.
  std::string run_id = "none";
  std::string role = "default";
  int min_nodes = 1;
  int max_nodes = 1;
  ProcessesPerNode nproc_per_node;

  // How the nodes meet.
  RendezvousBackend backend = RendezvousBackend::kStatic;
  Endpoint endpoint;  // from --rdzv_endpoint, or --master_addr and --master_port
  std::optional<int> node_rank;
  NetworkUse network;
  // `--master_port` of a job on one node: the very port its workers see as MASTER_PORT. 0: reserved
  // by us.
  int worker_master_port = 0;
  std::string worker_master_addr;  // likewise `--master_addr`
  PortRange worker_ports;
  StoreClients store_clients = StoreClients::kAll;
  std::optional<bool> is_host;  // --rdzv_conf is_host: host the server here (true) or never (false)
  bool tls = true;
  // --auth: nodes prove the user's secret to each other. Without it nothing is encrypted either.
  bool authentication = true;
  absl::Duration join_timeout = absl::Seconds(600);
  absl::Duration last_call_timeout = absl::Seconds(30);
  absl::Duration close_timeout = absl::Seconds(30);
  // How long a node whose workers have ended waits for the word of a server that is out of reach.
  absl::Duration read_timeout = absl::Seconds(60);
  absl::Duration orphan_timeout = absl::Minutes(10);  // how long workers run on without a server
  LeaseSettings lease;

  // What happens when something ends.
  int max_restarts = 0;
  ScaleUp scale_up = ScaleUp::kNow;
  int left_exit_code = 0;  // of a node that is drained or replaced
  absl::Duration shutdown_timeout = absl::Seconds(30);
  WatchMode watch = WatchMode::kAuto;
  absl::Duration hang_timeout = absl::Seconds(600);  // silence of a step that is a hang
  std::vector<int> signals_to_handle;                // signal numbers; empty: see HandledSignals
  double monitor_interval_s = 0.1;  // accepted for compatibility; exits are seen at once

  // What runs.
  Program program;
  NodeProgramsSpec node_programs;
  bool virtual_local_rank = false;
  NumaBinding numa_binding = NumaBinding::kNone;
  OmpThreads omp_threads;
  LogSpec logs;

  // Checks every field and every combination. The message starts with the flag and its value,
  // "--max_restarts=-1: ", and says what was expected.
  //
  // Errors: kInvalidArgument.
  absl::Status Validate() const;

  bool is_single_node() const { return max_nodes == 1; }
  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

RendezvousSettings MakeRendezvousSettings(const JobSpec& spec);

// `spec.watch` without kAuto.
WatchMode EffectiveWatch(const JobSpec& spec);

// What ends the job when the launcher gets it: `signals_to_handle`, or the default.
std::vector<int> HandledSignals(const JobSpec& spec);

}  // namespace muster
