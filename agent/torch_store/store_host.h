// This node's part in PyTorch's store of a round: node 0 serves it, the others bear witness of
// their workers.
//
// Threads: one owner (the agent's loop).
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/torch_store/store_witness.h"
#include "agent/torch_store/torch_store_server.h"
#include "proto/base/membership.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {

class StoreHost {
 public:
  explicit StoreHost(StoreClients clients) : clients_(clients) {}

  // Begins the part at `host`:`port`, what the workers of the round know as MASTER_ADDR and
  // MASTER_PORT. The part in the last round has ended. `status` says whether it could.
  void StartRound(const Assignment& assignment, const std::string& host, int port);
  // How the last start went.
  //
  // Errors: kResourceExhausted: no threads or descriptors; TorchStoreServer::Start's. Only where
  //         the store is served: a witness only says what would be said later, or not at all.
  const absl::Status& status() const { return status_; }
  void EndRound();

  bool is_serving() const { return server_ != nullptr; }
  // A worker of this node.
  void AddWorker(Rank rank, pid_t pid);
  // The two do as TorchStoreServer's, and nothing where it is not served.
  void AskWhoIsMissing(absl::AnyInvocable<void(std::vector<hangs::Gathering>)> answer);
  void StopTelling();

 private:
  absl::Status Serve(const Assignment& assignment, const std::string& host, int port);

  const StoreClients clients_;
  std::unique_ptr<TorchStoreServer> server_;
  std::unique_ptr<StoreWitness> witness_;
  absl::Status status_;
};

}  // namespace muster::agent
