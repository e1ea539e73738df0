// Decides whether a checkpoint may be published. Its writer asks last of all, so that of two rank
// 0s, one of which was thought lost, only the rank 0 of the present round publishes. Safety rests
// on this answer and not on having ended a process in time.
//
// Threads: pure.
#pragma once

#include "absl/status/status.h"
#include "rendezvous/core/rendezvous_core.h"

namespace muster::rendezvous {

// The server is of `term`. Ok for a member of the newest round, even while it is being stopped, has
// left by itself or the job has ended: no other round has begun, and workers save within their
// grace.
//
// Errors:  kUnavailable: not now. The node's lease has ended by the server's count, its stream
//          broke and it has not reported since, or the node has heard of a newer server.
//          kAborted: the round, or the job, is over: this checkpoint is never published.
// Source:  fencing as in Kleppmann, "How to do distributed locking" (2016) (memory); differs in
//          that the token is checked by the server that issued it.
absl::Status CheckCommit(const JobState& state, const CommitRequested& request, ServerTerm term,
                         MonoTime now);

}  // namespace muster::rendezvous
