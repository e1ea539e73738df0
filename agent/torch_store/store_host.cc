#include "agent/torch_store/store_host.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::agent {

void StoreHost::StartRound(const Assignment& assignment, const std::string& host, int port) {
  const bool serves = assignment.node_rank == NodeRank(0);
  try {
    if (serves) {
      status_ = Serve(assignment, host, port);
    } else {
      status_ = absl::OkStatus();
      witness_ = std::make_unique<StoreWitness>(host, port);
    }
  } catch (const std::system_error& error) {
    if (!serves) return;
    status_ = absl::ResourceExhaustedError(absl::StrCat(
        "cannot serve PyTorch's store: ", error.code().message(),
        "; out of threads or descriptors: raise the limits on processes (ulimit -u, pids.max) "
        "and open files (ulimit -n)"));
  }
}

absl::Status StoreHost::Serve(const Assignment& assignment, const std::string& host, int port) {
  TorchStoreServerOptions options{.host = host, .port = port};
  options.settings.world_size = assignment.world_size;
  options.settings.own = assignment.node_rank;
  options.settings.clients = clients_;
  Rank first(0);
  for (const Peer& peer : assignment.peers) {
    options.settings.nodes.push_back({.name = peer.name,
                                      .address = peer.address,
                                      .first_rank = first,
                                      .local_world_size = peer.local_world_size,
                                      .other_addresses = peer.other_addresses});
    first = Rank(first.value() + peer.local_world_size);
  }
  MUSTER_ASSIGN_OR_RETURN(server_, TorchStoreServer::Start(std::move(options)));
  return absl::OkStatus();
}

void StoreHost::EndRound() {
  server_.reset();
  witness_.reset();
}

void StoreHost::AddWorker(Rank rank, pid_t pid) {
  if (server_) server_->AddWorker(rank, pid);
  if (witness_) witness_->AddWorker(rank, pid);
}

void StoreHost::AskWhoIsMissing(absl::AnyInvocable<void(std::vector<hangs::Gathering>)> answer) {
  if (server_) server_->AskWhoIsMissing(std::move(answer));
}

void StoreHost::StopTelling() {
  if (server_) server_->StopTelling();
}

}  // namespace muster::agent
