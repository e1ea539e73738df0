// What one agent should be doing, given the state of the job. A complete statement each time, so it
// may be sent as often as one likes.
#pragma once

#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

// A member is told to run its round, or to stop it; one that waits is told what for. The peers in
// an assignment are left out for a node whose report shows that it already runs that round, because
// it has them.
//
// Threads: pure.
DirectiveBody DecideDirective(const JobState& state, const NodeState& node, MonoTime now);

}  // namespace muster::rendezvous
