#include "agent/core/worker_environment.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/process_end.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {
namespace {

std::string At(const std::vector<std::string>& values, int index) {
  return index < static_cast<int>(values.size()) ? values[index] : "";
}

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

}  // namespace

std::vector<WorkerEnv> MakeWorkerEnvs(const Assignment& assignment,
                                      const WorkerEnvContext& context) {
  WorkerEnv common;
  common.world_size = assignment.world_size;
  common.local_world_size = assignment.local_world_size;
  common.node_rank = assignment.node_rank;
  common.num_nodes = assignment.num_nodes;
  common.role_name = context.role;
  common.role_world_size = assignment.role_world_size;
  common.master_addr =
      context.master_addr.empty() ? assignment.master_address : context.master_addr;
  common.master_port = context.master_port == 0 ? assignment.master_port : context.master_port;
  common.restart_count = assignment.restart_count;
  common.max_restarts = context.max_restarts;
  common.signals_to_handle =
      absl::StrJoin(context.signals_to_handle, ",",
                    [](std::string* out, int signal) { absl::StrAppend(out, SignalName(signal)); });
  common.run_id = context.run_id;
  common.virtual_local_rank = context.virtual_local_rank;
  common.instance = assignment.instance;
  common.round = assignment.round;
  common.agent_socket = context.agent_socket;

  const std::vector<std::string> addresses = WorkerAddresses(assignment);
  std::vector<WorkerEnv> envs;
  for (int i = 0; i < assignment.local_world_size; ++i) {
    WorkerEnv& env = envs.emplace_back(common);
    env.rank = Rank(assignment.first_rank.value() + i);
    env.local_rank = LocalRank(i);
    env.role_rank = assignment.role_first_rank + i;
    env.error_file = At(context.error_files, i);
    env.visible_devices = At(context.visible_devices, i);
    env.board = At(context.boards, i);
    env.tf_config = MakeTfConfig(addresses, env.rank);
  }
  return envs;
}

}  // namespace muster::agent
