// How a job ends: the exit code and the one sentence that every node shows.
//
// Threads: pure.
#pragma once

#include <string>

#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

// Failures kept and told to every node; the earliest ones are, because the root cause is among
// them.
inline constexpr size_t kMaxFailuresKept = 64;
// The bytes of text of each failure in an outcome beside the one that matters most: the root cause,
// or else the first. Every node is told them, and they are kept after the end.
inline constexpr size_t kOtherFailureBytes = size_t{2} << 10;

// Adds what `member` reports about its workers to state.failures, each rank once, sorted by
// instant: now minus the age in the report. Ranks that are not the member's are ignored.
void RecordFailures(JobState& state, const NodeState& member, MonoTime now);

// So many restarts for failures in a row without a checkpoint in between, and the job ends, if its
// program has ever committed one: it would fail at the same step again. One that never commits says
// nothing of its progress, and has max_restarts alone.
inline constexpr int kMaxRestartsWithoutCommit = 5;

// A worker has said by its exit code (kExitDoNotRestart) that another restart cannot help.
bool AsksForNoRestart(const JobState& state);
// Another restart cannot help, though the budget may have some: no progress, or a worker asks for
// none.
bool IsRestartPointless(const JobState& state);

// The outcome of state.failures, of which there is at least one. Root cause: the first failure that
// asks for no restart, else the first.
JobOutcome OutcomeOfFailures(const JobState& state);

// A node of a static job that is gone and may not be replaced.
JobOutcome OutcomeOfLoss(const JobState& state, const std::string& reason);

// A node, or the host of this server, that ends the job by leaving.
JobOutcome OutcomeOfDeparture(const Departure& departure, std::string reason);

// The failures so far, for an outcome with another cause: the first whole, the others cut.
std::vector<WorkerFailure> FailuresOf(const JobState& state);

}  // namespace muster::rendezvous
