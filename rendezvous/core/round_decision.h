// Is the round complete? The policy of joining in one pure function, with its reason in words.
#pragma once

#include <string>
#include <vector>

#include "proto/base/mono_time.h"
#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

enum class RoundVerdict { kWait, kComplete, kTimedOut };

struct RoundDecision {
  RoundVerdict verdict = RoundVerdict::kWait;
  std::string reason;  // goes to the log, the status page and the status line of waiting agents
  // When a later tick could change the verdict; InfiniteFuture() if only an event can.
  MonoTime next_deadline = MonoTime::InfiniteFuture();
};

// Names listed in statuses and messages; the rest is counted ("and 5 more"), because a line that
// names thousands of nodes helps nobody and would be sent to each of them.
inline constexpr int kMaxPresentNamed = 8;
inline constexpr int kMaxMissingNamed = 3;

// Time that a member has beyond shutdown_timeout to stop its workers: SIGKILL and the sweep after
// it.
inline constexpr absl::Duration kStopSlack = absl::Seconds(15);

// Decides whether the round being formed is complete at `now`. Every node of `state` has a valid
// lease: RendezvousCore removes the others first.
//
//   * never while a member of the last round is still stopping its workers: it is alive and will
//     join;
//   * every one of max_nodes is there: complete at once;
//   * static: exactly the node ranks 0..max_nodes-1;
//   * a re-formed round: complete at once when the survivors among those who joined are at least
//     min_nodes, after the back-off; one that has joined and lost its connection is waited for, at
//     most until its lease ends; so is a member whose node check runs, at most for a last call,
//     and one whose check has failed is not;
//   * min_nodes are there, with those held back (membership_policy.h) if it takes them: complete
//     when the last call has elapsed;
//   * never while the server is so young that agents of an earlier life may still come;
//   * join_timeout since forming began: timed out; the reason names the missing and the age of
//     those present.
//
// "There" means joined and connected: an agent whose stream has broken is perhaps dead.
//
// Cost:    a few names, not the number of nodes.
// Source:  torch elastic's join operation (_RendezvousJoinOp of dynamic_rendezvous.py) for last
//          call and join time-out; differs in that a re-formed round waits for nobody else, and
//          that the missing are named.
// Threads: pure.
RoundDecision DecideRound(const JobState& state, MonoTime now);

// Whether as many have joined as a round needs: all of a static job, else min_nodes.
bool IsEnough(const JobState& state);

// The nodes in JobState::joined, best first: survivors of the last round by node rank, then the
// others by arrival.
std::vector<Incarnation> ReadyNodes(const JobState& state);

// The nodes that a completed round takes: survivors of the last one first, then by arrival, at most
// max_nodes; of those held back only as many as it takes to reach min_nodes. Two nodes that do not
// reach each other (network_split.h) are taken only if there are not min_nodes otherwise.
std::vector<Incarnation> ChooseMembers(const JobState& state);

}  // namespace muster::rendezvous
