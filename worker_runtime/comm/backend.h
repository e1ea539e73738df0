// What every back end is made from, and what it makes. A back end is a folder beside this file with
// one Make...Communicator(BackendRequest) in its header; communicator_registry.cc knows them by
// name.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "muster/communicator.h"
#include "muster/device.h"
#include "muster/store.h"
#include "worker_runtime/comm/call_communicator.h"

namespace muster::comm {

struct BackendRequest {
  Membership membership;
  std::shared_ptr<Store> store;  // may be null for one rank
  std::string prefix;            // of keys in the store: the same on all ranks, used once
  // How ranks find each other over the network.
  std::string master_addr;
  bool several_nodes = false;
  std::string gloo_interfaces;     // GLOO_SOCKET_IFNAME
  std::string nccl_interfaces;     // NCCL_SOCKET_IFNAME; NCCL reads it from the environment itself
  int local_rank = 0;              // among the ranks of this machine
  std::optional<GpuIdentity> gpu;  // whose memory the buffers are in; nothing: the host's
  // Whether ranks share a GPU is not asked of those that were told nccl: NCCL was told how to see
  // that itself (NCCL_HOSTID, NCCL_MULTI_RANK_GPU_ENABLE).
  bool nccl_tells_gpus_apart = false;
  // What this process had in the group's place in an earlier round, failed or given up; null:
  // nothing. A back end may make the new one from it, as all ranks then do, and ends it either way.
  std::unique_ptr<Communicator> former;
  bool others_may_have_former = false;  // where this process has none
};

}  // namespace muster::comm
