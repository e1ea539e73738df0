// The nodes that want a place in the next round, in three lists of JobState: ready (joined),
// disconnected (away), and held back for their history. Each change costs O(log n).
//
// Threads: pure.
#pragma once

#include "proto/base/mono_time.h"
#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

// Puts a node that wants a place where it belongs at `now`; again after each report, at each change
// of its connection, and when its time of being held back is over.
void PutOnWaitingList(JobState& state, NodeState& node, MonoTime now);

// Lists the node in JobState::outside by the check of its newest report.
void NoteCheck(JobState& state, const NodeState& node);

// Does nothing if it is on none.
void TakeOffWaitingList(JobState& state, NodeState& node);

// Moves those whose time of being held back has come to `joined`.
void ReleaseHeldBack(JobState& state, MonoTime now);

}  // namespace muster::rendezvous
