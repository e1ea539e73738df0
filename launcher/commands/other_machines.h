// A host of the rendezvous whose user has written loopback, where nodes of other machines do not
// come: it listens on its other addresses, too, unless anyone could come then (--auth=none).
#pragma once

#include <string>
#include <vector>

#include "launcher/endpoint.h"
#include "proto/spec/job_spec.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::launcher {

// `server` listens at `endpoint`. Says where others can come, and also that they cannot. `others`
// are this node's other addresses, the best to tell first.
void ListenForOtherMachines(const JobSpec& spec, const ResolvedEndpoint& endpoint,
                            const std::vector<std::string>& others,
                            rendezvous::RendezvousServer& server);

}  // namespace muster::launcher
