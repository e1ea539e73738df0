// The one step after which all ranks of a round leave, so that what they save is of one step and no
// collective is left half done.
//
//   asked for   a person stops the job or drains a node, or a node has been told to end and says so
//   open        every rank holds before its next step, and every node reports how far its ranks are
//   named       every member has reported: the furthest step. Each rank goes on to it and leaves
//
// No rank is past the named step, because each has promised to begin no step beyond its floor until
// then. No rank waits in a collective for one that holds, because all go on to the furthest step.
// Members whose programs never ask whether to stop promise nothing and leave the step open: then
// the workers are signalled after --shutdown_timeout, as if there were no such step.
//
// A named step stays named, even across restarts of a server that keeps records, because members
// are told only after it has been recorded.
//
// Threads: pure.
#pragma once

#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

// Asks for a stop of the running round. A stop that ends the job replaces one that does not; the
// step stays.
void AskForStop(JobState& state, StopStep asked, MonoTime now);

// Takes the floor from the report of a live member. Workers that have ended with 0 begin no further
// step.
void NoteStopFloor(JobState& state, const NodeState& member);
void NoteFloorsOfFinished(JobState& state);

// Names the step if it is open and every member has reported its floor. True if this call named it.
bool NameStopStep(JobState& state);

// When an open step turns into signals; InfiniteFuture() if none is open.
MonoTime StopPatienceEnds(const JobState& state);

// Whether no round follows the running one.
bool EndsByStop(const JobState& state);

// The outcome of a job that was asked to stop. `instead` says what stopped it; empty: the step.
JobOutcome OutcomeOfStop(const JobState& state, const std::string& instead);

// The directive that ends a drained node, and says so where the others cannot go on without it.
EndJob EndOfDrained(const JobState& state, Incarnation node);

// "; the next round then waits for ...", where too few nodes are not drained; empty: it does not.
std::string WaitWithoutDrained(const JobState& state);

// Whether a known node is not drained; without such a node there is no further round.
bool HasNodeThatStays(const JobState& state);

}  // namespace muster::rendezvous
