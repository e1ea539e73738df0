// `muster run --hostfile`: one agent per host, started over ssh; for this machine alone, ours.
#pragma once

#include "launcher/hosts/host_plan.h"
#include "launcher/line/invocation.h"

namespace muster::launcher {

// Returns the job's exit code: the agents', which is the same on every host; 4 if a host could not
// be reached, after the others have been stopped. A connection that is lost later ends nothing: its
// agent runs on, and the others' code counts. Signals that stop the job are passed on to all
// agents.
int HostsCommand(const HostJob& job, const Invocation& invocation);

}  // namespace muster::launcher
