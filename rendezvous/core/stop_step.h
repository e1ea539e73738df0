// The one step after which all ranks of a round leave, so that what they save is of one step and no
// collective is left half done.
//
//   asked for   a person stops the job or drains a node, or a node has been told to end and says so
//   open        every rank holds before its next step, and every node reports how far its ranks are
//   named       once every member has: the furthest of them. Each rank goes on to that step and
//   leaves
//
// Nobody is past the step that is named, because each has promised to begin none beyond its floor
// before; and nobody waits in a collective for one that holds, because all go on to the furthest.
// Members that promise nothing, because their programs never ask whether to stop, leave it open:
// then the workers are signalled after --shutdown_timeout, as if there were no such step.
//
// What is named stays named, also over lives of a server that keeps records: it is told once it is
// kept.
//
// Threads: pure.
#pragma once

#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

// Takes the wish for a stop of the running round. One that ends the job replaces one that does not;
// the step stays.
void AskForStop(JobState& state, StopStep asked, MonoTime now);

// What a report of a live member says of its floor. Workers that have ended with 0 begin nothing
// more.
void NoteStopFloor(JobState& state, const NodeState& member);
void NoteFloorsOfFinished(JobState& state);

// Names the step if it is open and every member has said its floor. True if it has been named now.
bool NameStopStep(JobState& state);

// When an open step turns into signals; InfiniteFuture() if none is open.
MonoTime StopPatienceEnds(const JobState& state);

// The round is not followed by another.
bool EndsByStop(const JobState& state);

// The end of a job that was asked to stop. `instead` says what stopped it if not the step; empty:
// that did.
JobOutcome OutcomeOfStop(const JobState& state, const std::string& instead);

// The end of a drained node.
EndJob EndOfDrained(const JobState& state, Incarnation node);

// A node that is known and not drained: without one there is nobody for another round.
bool HasNodeThatStays(const JobState& state);

}  // namespace muster::rendezvous
