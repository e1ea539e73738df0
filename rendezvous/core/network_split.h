// Nodes that do not reach each other, where the job requires that all of a round do
// (--network=require): who goes on, and who waits as a spare.
//
// What a check has found is kept with both nodes (NodeState::apart_from) until one of them is gone,
// or until they share a round again, which is checked like any other. JobRecord lacks it, so a
// server that comes back lets such nodes meet once more.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "proto/base/failed_pair.h"
#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

struct NetworkSplit {
  std::vector<std::string> leaving;  // names of members that are to wait
  bool is_enough = false;            // those that stay are as many as a round needs
  std::string reason;                // "node2 (10.0.0.3) does not reach node3 (10.0.0.4): no route"
};

// Keeps that these members of the newest round do not reach each other, and says what follows.
// What is no pair of two live members counts for nothing; `reason` is empty if no pair is left.
NetworkSplit SplitMembers(JobState& state, const std::vector<FailedPair>& pairs);

// Those of `nodes`, which come best first, that go on together: again and again the one that most
// others do not reach is left out, of several the last. So the larger side of a network in two
// parts stays, and of equal sides that of the first. Whoever reaches all that stay is among them.
std::vector<Incarnation> ThoseTogether(const JobState& state, std::vector<Incarnation> nodes);

// Members of the newest round that `node` does not reach, as far as is known.
std::vector<Incarnation> MembersApartFrom(const JobState& state, const NodeState& node);

// These are in one round, whose own check says who reaches whom.
void ForgetSplitAmong(JobState& state, const std::vector<Incarnation>& nodes);

}  // namespace muster::rendezvous
