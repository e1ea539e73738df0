// `muster run --hostfile`: the hosts that were chosen, and what was given -> what each host's agent
// is started with. As `deepspeed` does: one agent per host, a worker per slot, `--local_rank=N` as
// the script's first argument unless --no_local_rank, LOCAL_SIZE, CROSS_RANK, CROSS_SIZE and
// CUDA_VISIBLE_DEVICES for workers, and the variables of .deepspeed_env.
//
// Source:  DeepSpeed 0.18, deepspeed/launcher/{runner,launch,multinode_runner}.py.
// Threads: pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/config/launch_config.h"
#include "launcher/hosts/host_file.h"
#include "launcher/hosts/remote_start.h"
#include "proto/base/environment.h"
#include "proto/command_line/command_line.h"

namespace muster::launcher {

// What `deepspeed` puts in front of the script's own arguments; each worker gets its own number.
inline constexpr char kLocalRankArgument[] = "--local_rank=${local_rank}";

// A command line with --hostfile.
struct HostJob {
  std::string host_file;  // its path
  HostChoice choice;
  std::string ssh_config;  // for ssh -F; empty: ssh's own
  int ssh_port = 0;        // 0: ssh's own
  bool passes_local_rank = true;
  bool authentication = true;
  std::vector<std::string> options;  // of `muster run`, for every agent
  std::vector<std::string> script;   // with its arguments
  // The place of this machine among the hosts, where every host is given this line: no other one is
  // started from here.
  std::optional<int> node_rank;
  bool has_place = false;  // the options say where the nodes meet
  bool has_port = false;
  bool has_run_id = false;
  bool has_workers = false;  // and how many workers each node has
  bool has_console = false;  // or how their lines look
  LaunchConfig config;  // of the configuration file that named the hosts; its options are above
};

// Takes the options that are about hosts out of `line`.
//
// Errors: kInvalidArgument: an option that contradicts a host file.
absl::StatusOr<HostJob> MakeHostJob(const command_line::Grammar& grammar,
                                    const command_line::CommandLine& line);

// What is the same for all hosts.
struct HostSurroundings {
  std::string directory;       // where we were started
  EnvironmentMap environment;  // ours
  std::string deepspeed_env;   // text of .deepspeed_env; empty: none
  std::string first_address;   // of the first host, as ssh knows it
  std::string fresh_run_id;
  std::string token;  // the user's secret; empty: without
};

// --include, --exclude, --num_nodes and --num_gpus of `line`.
HostChoice HostChoiceOf(const command_line::CommandLine& line);

// The text of DeepSpeed's files of variables: of home, then of the working directory. `read` gives
// the text of a file, empty if there is none.
std::string FindDeepSpeedVariables(const EnvironmentMap& environment,
                                   const std::function<std::string(const std::string&)>& read);

// Sets what such a text says.
//
// Errors: kInvalidArgument: a line that is no NAME=value.
absl::Status ReadDeepSpeedVariables(const std::string& text, EnvironmentMap& out);

// The workers of `host` as --nproc_per_node takes them: "4", or "gpu:0,2".
std::string WorkersOfHost(const HostEntry& host);

// One start per host, in their order.
//
// Errors: kInvalidArgument: a line of .deepspeed_env that is no NAME=value.
absl::StatusOr<std::vector<RemoteStart>> PlanHosts(const HostJob& job,
                                                   const std::vector<HostEntry>& hosts,
                                                   const HostSurroundings& surroundings);

}  // namespace muster::launcher
