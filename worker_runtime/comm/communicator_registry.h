// Communicators by the name of their backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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
  std::string gloo_interfaces;  // GLOO_SOCKET_IFNAME
  std::string nccl_interfaces;  // NCCL_SOCKET_IFNAME; NCCL reads it from the environment itself
  int local_rank = 0;           // among the ranks of this machine
};

// "loopback", "gloo", "nccl".
std::vector<std::string> BackendNames();

// Waits for the other ranks. A single rank needs no network: it gets loopback where it asked for
// gloo.
//
// Errors: kInvalidArgument: no such backend; loopback for several processes; an interface that is
// none.
//         kUnimplemented: a backend that this build or machine lacks, and how to get it. Others:
//         the backend's.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(const std::string& backend,
                                                               BackendRequest request);

}  // namespace muster::comm
