// The state of one job at the rendezvous, and its invariants. Values only; RendezvousCore changes
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/string_view.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"

namespace muster::rendezvous {

// Phases of a job. The transitions are a table in round_state.cc, printed by `PhaseTable()`:
//   forming -> running          the round is complete
//   running -> forming          a failure within the budget, a loss, a late joiner
//   forming, running -> ending  the outcome is decided; members are stopping
//   forming, running -> ended   the outcome is decided and nobody has to be stopped
//   ending -> ended             every member has stopped, or is gone, or had its time
enum class JobPhase { kForming, kRunning, kEnding, kEnded };
inline constexpr JobPhase kJobPhases[] = {JobPhase::kForming, JobPhase::kRunning, JobPhase::kEnding,
                                          JobPhase::kEnded};
absl::string_view ToString(JobPhase phase);
bool IsAllowed(JobPhase from, JobPhase to);
std::string PhaseTable();

// One agent that has reported at least once and has not left.
struct NodeState {
  Incarnation incarnation;
  AgentReport report;       // the newest
  MonoTime first_seen;      // "joined 12s ago"
  MonoTime lease_expires;   // by the server's count
  uint64_t join_order = 0;  // order of arrival, the last tie-break of rank assignment
  bool connected = true;
  bool told_end = false;         // an EndJob has been sent to it
  Round told = kNoRound;         // the newest round it has been told to run
  Round told_before = kNoRound;  // the one that it was told of before that
  Round left = kNoRound;         // the newest of these that it has left, by its own report
};

// What is kept of an agent that is gone, so that its late messages are recognised as late.
struct FormerNode {
  uint64_t sequence = 0;  // of its newest report
  Round told = kNoRound;
};
inline constexpr size_t kMaxFormerNodes = 4096;

// Invariants, checked by CheckInvariants after every Step in tests and simulation:
//   R1: ranks of a completed round are 0..world_size-1, each once, contiguous by node.
//   R2: rounds grow by one, and nobody has been told of a round that is not complete.
//   R3: min_nodes <= members of a completed round <= max_nodes.
//   R4: restarts_used <= max_restarts.
//   R5: every member of the current round is a known node, or is recorded as lost or left.
//   R6: at most one live incarnation holds a node rank: of the round, and of a static job.
//   R7: an ended job has an outcome, and nobody is in its round any more.
//   R8: a node that has been told to run a round had left the round that it was told of before.
//   R9: the indices (joined, in_round, succeeded, leases) agree with the nodes they speak of.
struct JobState {
  JobPhase phase = JobPhase::kForming;
  std::optional<RendezvousSettings> settings;  // of the first to join
  std::string settings_from;                   // its name
  absl::btree_map<Incarnation, NodeState> nodes;
  absl::btree_map<Incarnation, FormerNode> former;  // at most kMaxFormerNodes
  uint64_t next_join_order = 0;

  // The last completed round. Whatever depends on who was in it is cleared by the next one.
  Round round = kNoRound;
  int64_t rounds_completed = 0;
  std::vector<Incarnation> members;                      // by node rank
  absl::btree_map<Incarnation, Assignment> assignments;  // without peers, which are all the same
  std::vector<Peer> peers;                               // empty above kMaxPeersInAssignment
  absl::btree_map<Incarnation, std::string> lost;        // members that are gone, with their names
  absl::btree_set<Incarnation> in_round;   // members whose workers may be alive, or that succeeded
  absl::btree_set<Incarnation> succeeded;  // members whose workers have all ended with 0
  MonoTime running_since;
  std::optional<StopRound> stop;  // what members are told while they are still in the round

  // The round being formed.
  absl::btree_map<uint64_t, Incarnation> joined;  // nodes that wait for a place, by join_order
  absl::btree_map<int, Incarnation> claims;       // static job: who holds which --node_rank
  MonoTime forming_since;
  std::optional<MonoTime> last_call_since;  // when min_nodes was reached
  MonoTime not_before;                      // back-off: the round is not completed earlier
  std::string forming_reason;               // why a round is formed again

  // Budgets, apart by cause.
  int restarts_used = 0;
  int membership_changes = 0;
  int quick_ends = 0;  // rounds in a row that ended within ten seconds

  // The end.
  std::optional<JobOutcome> outcome;  // provisional while kEnding: failures still come in
  MonoTime ending_deadline;
  MonoTime ended_at;
  bool retired = false;

  // Failures of `round` so far, with the instant of each by the server's clock.
  struct TimedFailure {
    MonoTime at;
    WorkerFailure failure;
  };
  std::vector<TimedFailure> failures;

  // When each node's lease ends, earliest first.
  absl::btree_set<std::pair<MonoTime, Incarnation>> leases;
};

// The lease of a job's nodes. It grows with their number, so that ten thousand renewals cost the
// server no more than two thousand would: 6 s up to 2000 nodes, 30 s with 10 000. It never
// shrinks while the job lives, since agents may have been told the longer interval.
LeaseSettings LeaseOf(const LeaseSettings& settings, const JobState& state);

// A member of the current round that has not been lost and has not left the job.
bool IsLiveMember(const JobState& state, Incarnation node);

// R1..R9; empty if all hold, else the first broken one in words.
std::string CheckInvariants(const JobState& state);

}  // namespace muster::rendezvous
