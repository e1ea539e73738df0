// How this node meets the others: at a server of this process, or at one that listens already
// (another node's, or musterd).
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/guardian/guardian.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "launcher/line/placement.h"
#include "launcher/node/node_setup.h"
#include "proto/base/environment.h"
#include "proto/io/credentials.h"
#include "proto/io/job_key.h"
#include "proto/io/user_secret.h"
#include "rendezvous/link/rendezvous_link.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::launcher {

class Meeting {
 public:
  // `placement` outlives it.
  Meeting(asio::io_context& loop, const Placement& placement)
      : loop_(loop), placement_(placement), late_nodes_(loop) {}

  // Hosts the rendezvous where this node may and nobody else does, and says so in `setup`. Else the
  // guardian is to tell the server of this agent's death. Blocks, see ListenAsHost. Once.
  //
  // Errors: those of LoadUserSecret, and of ListenAsHost but for a port that is taken.
  absl::StatusOr<std::unique_ptr<rendezvous::RendezvousLink>> MakeLink(
      NodeSetup& setup, const EnvironmentMap& environment, agent::GuardianHandle& guardian);

  // This node leaves, and its server, if it has one, with it: the others must know before. `signal`
  // made it leave; 0: none.
  void TellLeaving(int signal, const std::string& reason);
  // The job is over here: ends the server, and then calls `then`. `awaits_late_nodes`: those that
  // have not come yet are told first, for half a minute at most.
  void End(bool awaits_late_nodes, std::function<void()> then);
  // Nobody is awaited any longer.
  void EndNow() { late_nodes_.cancel(); }

 private:
  rendezvous::RendezvousServerOptions ServerOptions(const NodeSetup& setup);
  // False if the port of the endpoint is taken: its owner is the server.
  absl::StatusOr<bool> TryToHost(const rendezvous::RendezvousServerOptions& options,
                                 NodeSetup& setup);
  std::unique_ptr<rendezvous::RendezvousLink> MakeLocalLink(NodeSetup& setup);
  std::unique_ptr<rendezvous::RendezvousLink> MakeGrpcLink(const NodeSetup& setup,
                                                           UserSecret secret, TlsMode tls,
                                                           agent::GuardianHandle& guardian);
  void EndServer(std::function<void()> then);

  asio::io_context& loop_;
  const Placement& placement_;
  const Key life_key_ = DrawLifeKey();

  std::unique_ptr<rendezvous::RendezvousServer> server_;
  // The name by which others may have come to the server here; empty: there is none, or they were
  // told that it leaves.
  std::string host_name_;
  asio::steady_timer late_nodes_;
  int nodes_seen_ = 0;  // by the server
};

// What proves that this node belongs to the job: the user's secret, or the public one.
//
// Errors: those of LoadUserSecret.
absl::StatusOr<UserSecret> FindSecret(const JobSpec& spec, const EnvironmentMap& environment);

}  // namespace muster::launcher
