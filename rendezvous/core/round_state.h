// The state of one job at the rendezvous, and its invariants. Values only; RendezvousCore changes
// them.
//
// Two types, because their fates differ when a server dies: JobRecord is what a server with durable
// state has to keep; the rest of JobState is said again by the agents within a lease.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/string_view.h"
#include "proto/base/lease.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"
#include "rendezvous/core/outsiders.h"

namespace muster::rendezvous {

// Phases of a job. The transitions are a table in round_state.cc, printed by `PhaseTable()`:
//   forming -> running          the round is complete
//   running -> forming          a failure within the budget, a loss, a node that may come in
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
  bool told_end = false;   // an EndJob has been sent to it
  bool has_ended = false;  // its guardian has said so
  // How often its lease was renewed without a report of its own, because nobody was heard.
  int free_renewals = 0;
  // It has joined for the next round, and is in one of JobState::joined, away and held_back.
  bool wants_place = false;
  MonoTime held_until;  // while in held_back
  // Its way from round to round, by which a report that was sent before a directive arrived is told
  // from one that answers it: the newest round it has been told to run, the one told before that,
  // and the newest of these that it has left by its own report.
  Round told = kNoRound;
  Round told_before = kNoRound;
  Round left = kNoRound;
  // Nodes that it does not reach by the network that the job requires (network_split.h).
  absl::btree_set<Incarnation> apart_from;
};

// What is kept of an agent that is gone, so that its late messages are recognised as late.
struct FormerNode {
  uint64_t sequence = 0;  // of its newest report
  Round told = kNoRound;  // as in NodeState
  // It left by itself: its workers have their grace still, in which they may save. When its lease
  // would end, had it one.
  std::optional<MonoTime> may_publish_until;
};
inline constexpr size_t kMaxFormerNodes = 4096;

// How often a node, by its name, has broken a round by coming and going (membership_policy.h).
struct NodeHistory {
  int changes = 0;
  MonoTime last_change;
  // The time until which it gets a place only if the round cannot do without it. Zero if it has not
  // come back since its first change.
  MonoTime held_until;
};
inline constexpr size_t kMaxNodeHistories = 4096;

// The last completed round and who is in it; the next one replaces it as a whole.
struct RoundRecord {
  Round round = kNoRound;
  int64_t rounds_completed = 0;
  // Rounds before it have been numbered, or may have been without a record (round_restore.h).
  Round first_unused = Round(0);
  std::vector<Incarnation> members;                            // by node rank
  absl::btree_map<Incarnation, NodeDescription> descriptions;  // of the members, as they joined
  absl::btree_map<Incarnation, Assignment> assignments;  // without peers, which are all the same
  Peers peers;                                           // empty above kMaxPeersInAssignment
  Peers peers_for_node_0;  // the same with all addresses: it serves PyTorch's store
};

// The one step after which all ranks of the running round leave (stop_step.h).
struct StopStep {
  std::string reason;
  bool ends_job = true;          // else the next round begins without the nodes that are drained
  int exit_code = 0;             // of the job, if it ends by this
  int64_t step = kStopStepOpen;  // once it is named it never changes
  friend bool operator==(const StopStep&, const StopStep&) = default;
};

// A node that has no place in another round, because somebody has asked for that, or it has itself.
struct DrainedNode {
  std::string reason;
  int exit_code = 0;  // of its agent
  friend bool operator==(const DrainedNode&, const DrainedNode&) = default;
};
inline constexpr size_t kMaxDrainedNodes = 4096;

// How far the job is, and what it has used up.
struct ProgressRecord {
  std::optional<RendezvousSettings> settings;  // of the first to join
  std::string settings_from;                   // its name
  JobPhase phase = JobPhase::kForming;
  std::optional<StopRound> stop;  // what members are told while they are still in the round

  // Members of the last completed round.
  absl::btree_map<Incarnation, std::string> lost;  // members that are gone, with their names
  absl::btree_set<Incarnation> succeeded;          // members whose workers have all ended with 0

  // Rounds that ran workers, in this life of the job and in those that agents remember.
  int attempts = 0;

  // Budgets, apart by cause.
  int restarts_used = 0;  // of max_restarts: for failures
  int membership_changes = 0;
  int hasty_changes = 0;  // rounds in a row that a change ended before they had settled
  int quick_ends = 0;     // rounds in a row that ended within ten seconds
  absl::btree_map<std::string, NodeHistory> histories;  // by node name, at most kMaxNodeHistories

  // The newest checkpoint that was committed, in any round; -1: none.
  int64_t committed_step = -1;
  // Restarts for failures since then, or since the job began.
  int restarts_without_commit = 0;

  std::optional<StopStep> stop_step;                  // of the round that runs
  absl::btree_map<Incarnation, DrainedNode> drained;  // at most kMaxDrainedNodes

  std::optional<JobOutcome> outcome;  // provisional while kEnding: failures still come in
};

// What must outlive the server for its job to go on as if nothing had happened. In two parts,
// because the first is large and changes with each round only.
struct JobRecord : RoundRecord, ProgressRecord {};

struct RankClaim {
  Incarnation holder;
  // Nodes that ask for the rank and have its holder's name and address, which may be their earlier
  // start: from when on each counts as a second node of that name. At most kMaxFormerNodes.
  absl::btree_map<Incarnation, MonoTime> second_from;
};

// The node ranks of a static job.
struct NodeRanks {
  absl::btree_map<int, RankClaim> claims;  // by --node_rank
  absl::btree_set<int> missing;            // those that are not in JobState::joined
  std::vector<std::string> names;          // of nodes by rank, for messages; empty: not known
};

// Invariants, checked by CheckInvariants after every Step in tests and simulation:
//   R1: ranks of a completed round are 0..world_size-1, each once, contiguous by node.
//   R2: rounds grow, and nobody has been told of a round that is not complete.
//   R3: min_nodes <= members of a completed round <= max_nodes.
//   R4: restarts_used <= max_restarts.
//   R5: every member of the current round is a known node, or is recorded as lost or left.
//   R6: at most one live incarnation holds a node rank: of the round, and of a static job.
//   R7: an ended job has an outcome, and nobody is in its round any more.
//   R8: a node that has been told to run a round had left the round that it was told of before.
//   R9: the indices (joined, away, held_back, outside, ranks.missing, in_round, succeeded, leases)
//       agree with the nodes they speak of.
//   R10: the attempt of a round is later than that of any round before it.
//   R11: no rank has begun a step beyond the one that is named, by what its node has promised.
//   R12: no drained node waits for a place, and none whose node check has not passed.
//   R13: members of a round that runs reach each other, as far as is known.
struct JobState : JobRecord {
  absl::btree_map<Incarnation, NodeState> nodes;
  absl::btree_map<Incarnation, FormerNode> former;  // at most kMaxFormerNodes
  uint64_t next_join_order = 0;

  // The round that runs, or ran last.
  absl::btree_set<Incarnation> in_round;  // members whose workers may be alive, or that succeeded
  MonoTime running_since;
  std::optional<MonoTime> committed_at;  // the newest checkpoint of this round
  // How far each member has promised to go at most until the stop step is named; -1: its workers
  // have ended, or have begun none.
  absl::btree_map<Incarnation, int64_t> stop_floors;
  MonoTime stop_asked_at;

  // The round being formed. Nodes that want a place, by join_order (waiting_list.h):
  absl::btree_map<uint64_t, Incarnation> joined;  // ready
  // Connection lost: back within the lease, or gone. By name, to find the successor of a dead one.
  absl::btree_map<std::pair<std::string, uint64_t>, Incarnation> away;
  // Held back for their history, keyed by the time until which they are.
  absl::btree_map<std::pair<MonoTime, uint64_t>, Incarnation> held_back;
  Outsiders outside;
  NodeRanks ranks;
  MonoTime forming_since;
  MonoTime joined_since;                    // when `joined` stopped being empty
  std::optional<MonoTime> last_call_since;  // when min_nodes was reached
  MonoTime not_before;                      // back-off: the round is not completed earlier
  MonoTime young_until;        // the server has just started: agents of an earlier life come first
  std::string forming_reason;  // why a round is formed again

  // The end.
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
  MonoTime last_heard;  // of any agent of the job
};

// The lease of a job's nodes (proto/base/lease.h). It never shrinks while the job lives, since
// agents may have been told the longer interval.
LeaseSettings LeaseOf(const LeaseSettings& settings, const JobState& state);

// A member of the current round that has not been lost and has not left the job.
bool IsLiveMember(const JobState& state, Incarnation node);

// R1..R13; empty if all hold, else the first broken one in words.
std::string CheckInvariants(const JobState& state);

}  // namespace muster::rendezvous
