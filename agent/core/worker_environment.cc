#include "agent/core/worker_environment.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/base/process_end.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {
namespace {

// host:port of every worker by rank; empty unless all are known.
std::vector<std::string> WorkerAddresses(const Assignment& assignment) {
  std::vector<std::string> addresses;
  for (const Peer& peer : assignment.peers) {
    if (static_cast<int>(peer.worker_ports.size()) < peer.local_world_size) return {};
    for (int i = 0; i < peer.local_world_size; ++i) {
      addresses.push_back(ToString(Endpoint{.host = peer.address, .port = peer.worker_ports[i]}));
    }
  }
  if (static_cast<int>(addresses.size()) != assignment.world_size) return {};
  return addresses;
}

constexpr absl::string_view kLocalRank = "local_rank";

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// How much of `text`, which stands behind a `$`, names the local rank; 0 if it does not.
size_t LengthOfMacro(absl::string_view text) {
  if (absl::StartsWith(text, "{local_rank}")) return kLocalRank.size() + 2;
  const bool is_whole =
      absl::StartsWith(text, kLocalRank) &&
      (text.size() == kLocalRank.size() || !IsNameCharacter(text[kLocalRank.size()]));
  return is_whole ? kLocalRank.size() : 0;
}

std::string Substitute(absl::string_view argument, const std::string& local_rank) {
  std::string out;
  for (size_t i = 0; i < argument.size(); ++i) {
    out.push_back(argument[i]);
    if (argument[i] != '$') continue;
    if (absl::StartsWith(argument.substr(i + 1), "$")) {
      ++i;
    } else if (const size_t length = LengthOfMacro(argument.substr(i + 1)); length > 0) {
      out.pop_back();
      out.append(local_rank);
      i += length;
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> WorkerArguments(const std::vector<std::string>& command,
                                         LocalRank local_rank) {
  std::vector<std::string> arguments = command;
  for (size_t i = 1; i < arguments.size(); ++i) {
    arguments[i] = Substitute(arguments[i], ToString(local_rank));
  }
  return arguments;
}

std::vector<WorkerEnv> MakeWorkerEnvs(const Assignment& assignment, WorkerEnv common) {
  common.world_size = assignment.world_size;
  common.local_world_size = assignment.local_world_size;
  common.node_rank = assignment.node_rank;
  common.num_nodes = assignment.num_nodes;
  common.role_world_size = assignment.role_world_size;
  if (common.master_addr.empty()) common.master_addr = assignment.master_address;
  if (common.master_port == 0) common.master_port = assignment.master_port;
  common.restart_count = assignment.restart_count;
  common.instance = assignment.instance;
  common.round = assignment.round;

  const std::vector<std::string> addresses = WorkerAddresses(assignment);
  std::vector<WorkerEnv> envs;
  for (int i = 0; i < assignment.local_world_size; ++i) {
    WorkerEnv& env = envs.emplace_back(common);
    env.rank = Rank(assignment.first_rank.value() + i);
    env.local_rank = LocalRank(i);
    env.role_rank = assignment.role_first_rank + i;
    env.tf_config = MakeTfConfig(addresses, env.rank);
  }
  return envs;
}

std::string NamesOfSignals(const std::vector<int>& signals) {
  return absl::StrJoin(
      signals, ",", [](std::string* out, int signal) { absl::StrAppend(out, SignalName(signal)); });
}

}  // namespace muster::agent
