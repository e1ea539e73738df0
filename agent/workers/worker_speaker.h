// Which worker a process may speak as over the workers' socket (worker_service.h).
//
// A process speaks as the worker that it is or is below, whatever its variables say. One that is
// below no worker may be the program of a worker all the same: in a container that another daemon
// has started (docker run), in a process namespace that is not ours, under a daemon of the program
// whose parent has ended, or before its start is known here. So only a process that is shown to be
// another worker's is refused; what is known is its parents and their sessions, since each worker
// has a session of its own, in which its children stay when their parent ends.
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"
#include "agent/workers/worker_roster.h"

namespace muster::agent {

// `pid`: 0 if it is not known.
//
// Errors: kPermissionDenied: the node has no such local rank, or the process is another worker's.
absl::Status CheckSpeaker(WorkerRoster& roster, LocalRank said, pid_t pid);

}  // namespace muster::agent
