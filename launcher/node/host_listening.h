// How a host of the rendezvous comes to listen: at the endpoint, unless somebody else is the host,
// and where the user has written loopback, where nodes of other machines do not come, on its other
// addresses, too, unless anyone could come then (--auth=none).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/node/endpoint.h"
#include "launcher/node/node_signals.h"
#include "proto/base/membership.h"
#include "proto/spec/job_spec.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::launcher {

// The port at which `server` listens from now on. One that is taken and not listened at is another
// agent's that has come at the same time, of whom Linux may refuse both, or a process's that ends:
// it is tried again for up to five seconds, in a rhythm that `seed` tells from other agents'.
//
// Blocks, so signals wait for as long. Errors: RendezvousServer::Listen's.
absl::StatusOr<int> ListenAsHost(const ResolvedEndpoint& endpoint, uint64_t seed,
                                 rendezvous::RendezvousServer& server);

// A musterd that had the endpoint's port and was killed comes back, if it has a supervisor, and the
// port must be free then: waits for it, unless the user has said that this node is the host. Blocks
// for --orphan_timeout at most.
//
// Something: how this node ends, since it was told to meanwhile.
std::optional<JobOutcome> AwaitMarkedServer(const JobSpec& spec, const ResolvedEndpoint& endpoint,
                                            NodeSignals& signals);

// `server` listens at `endpoint`. Says where others can come, and also that they cannot. `others`
// are this node's other addresses, the best to tell first.
void ListenForOtherMachines(const JobSpec& spec, const ResolvedEndpoint& endpoint,
                            const std::vector<std::string>& others,
                            rendezvous::RendezvousServer& server);

}  // namespace muster::launcher
