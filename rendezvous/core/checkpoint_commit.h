// May a checkpoint be published? Whoever writes one asks here last, so that of two rank 0s, one of
// which was thought lost, only the one of the present round publishes: safety rests on this answer,
// and not on having ended a process in time.
//
// Threads: pure.
#pragma once

#include "absl/status/status.h"
#include "rendezvous/core/rendezvous_core.h"

namespace muster::rendezvous {

// Whose answer it is, and when.
struct CommitJudge {
  ServerTerm term;
  Instance instance;
  MonoTime now;
};

// Yes for a member of the newest round, also while it is being stopped, has left by itself or the
// job has ended: no other round has begun, and workers save in their grace.
//
// Errors:  kUnavailable: not now. The node's lease has ended by the server's count, its stream has
//          broken and it has not reported since, or the asker has heard of a newer server.
//          kAborted: the round, or the job, is over: this checkpoint is never published.
// Source:  fencing as in Kleppmann, "How to do distributed locking" (2016) (memory); differs in
// that
//          the token is checked by the one who hands it out.
absl::Status CheckCommit(const JobState& state, const CommitRequested& request,
                         const CommitJudge& judge);

}  // namespace muster::rendezvous
