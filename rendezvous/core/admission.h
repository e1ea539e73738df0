// May this agent take part in the job, as it describes itself? The rules and their words.
#pragma once

#include "absl/status/status.h"
#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

// More workers on one node than this are a mistake (and sums of them must stay far from 2^31).
inline constexpr int kMaxLocalWorldSize = 4096;
inline constexpr int kMaxNodes = 100000;

// Checks a report that is no farewell against the job.
//
// Errors:  kInvalidArgument: impossible values, other settings than those of the first node, a
//          --node_rank out of range or held by another live node; kUnavailable: the --node_rank is
//          held by a node that has lost its connection, or perhaps by an earlier start of the very
//          node (RankClaim::second_from), so asking again helps once its lease has ended; kAborted:
//          the report speaks of a round that this job has not had.
// Threads: pure.
absl::Status CheckAdmission(const JobState& state, Incarnation from, const AgentReport& report,
                            MonoTime now);

}  // namespace muster::rendezvous
