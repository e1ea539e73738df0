// What agents and the judge of their job say to each other about hangs. Decided by JobWatch
// (job_watch.h); on the wire: proto/watch.proto, by rendezvous/hangs/wire/watch_wire.h.
//
// An agent at rest says a few bytes with each renewal of its lease; everything else is asked for.
//
// Pure values.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "rendezvous/hangs/evidence/diagnosis.h"
#include "rendezvous/hangs/evidence/evidence.h"
#include "rendezvous/hangs/evidence/gatherings.h"
#include "rendezvous/hangs/evidence/incident_parts.h"
#include "rendezvous/hangs/evidence/last_calls.h"
#include "rendezvous/hangs/evidence/silence_history.h"
#include "rendezvous/hangs/evidence/silence_meter.h"

namespace muster::hangs {

// Neighbours by rank that are silent in the same phase for the same time.
struct SilentRanks {
  int first_rank = 0;
  int num_ranks = 1;
  WatchPhase phase = WatchPhase::kStep;
  absl::Duration silent_for;
  friend bool operator==(const SilentRanks&, const SilentRanks&) = default;
};

// Silences below this are not worth a byte.
inline constexpr absl::Duration kSilenceTold = absl::Seconds(3);
// What is more is left out, and counts as not silent.
inline constexpr int kSilentRanksMax = 64;

// Ranks of a node beyond it are left out, and count as not slow.
inline constexpr int kPacesMax = 64;

// The paces of the node's ranks in its last window (stragglers.h).
struct NodePaces {
  int64_t window = 0;               // counts them; 0: none yet
  std::vector<absl::Duration> own;  // by local rank, at most kPacesMax; zero: not known
  friend bool operator==(const NodePaces&, const NodePaces&) = default;
};

// How far the ranks of a node are that mark their steps. -1: not known.
struct NodeProgress {
  int64_t step = -1;  // of the furthest
  int64_t slowest_step = -1;
  int slowest_rank = -1;
  double steps_per_second = -1;
  friend bool operator==(const NodeProgress&, const NodeProgress&) = default;
};

// What an agent that judges its ranks itself has said last, and stands by. Values are sent between
// nodes: new ones go to the end.
enum class StandingKind { kNone, kNotice, kVerdict };
inline constexpr size_t kStandingBytesMax = 1024;
struct Standing {
  bool is_told = false;  // else the server judges
  StandingKind kind = StandingKind::kNone;
  std::string text;  // the first kStandingBytesMax bytes of it
  absl::Duration age;
  friend bool operator==(const Standing&, const Standing&) = default;
};

// The state of one node's ranks: complete, so that the newest replaces those before.
struct NodeSummary {
  Round round = kNoRound;
  absl::Duration hang_timeout;
  bool ends_workers = false;        // this node, at a verdict about its ranks
  bool may_replace = false;         // it may leave the job instead, for another node
  std::vector<SilentRanks> silent;  // at most kSilentRanksMax; the others move
  LearnedSilences learned;          // in the life of this agent
  NodePaces paces;
  // SilenceAtStart, from the node of rank 0, which may have no rank that waits or is missing.
  absl::Duration silence_at_start;
  // Counts windows in which it was read when its ranks come to their collectives; 0: none yet.
  int64_t arrival_window = 0;
  int num_ended = 0;  // of the node's ranks, with 0
  NodeProgress progress = {};
  Standing standing = {};
  friend bool operator==(const NodeSummary&, const NodeSummary&) = default;
};

// Answer to AskDetails.
struct NodeDetails {
  uint64_t question = 0;
  NodeSummary summary;  // of the same moment
  Evidence evidence;    // of this node's ranks
  // Gatherings of all ranks; from the node of rank 0 alone. At most kGatheringsMax.
  std::vector<Gathering> gatherings;
  // A debugger holds one of them: time means nothing then.
  bool is_held = false;
};

// Answer to AskStacks.
struct NodeStacks {
  uint64_t question = 0;
  Round round = kNoRound;
  std::vector<RankReport> ranks;
  bool has_moved = false;  // a rank of this node has, since it was asked
};

// A rank of this node has ended by SIGABRT of its own accord, and PyTorch has answered for ranks
// here. Said at once, ahead of the failure: the others end a tenth of a second later.
struct RankAborted {
  Round round = kNoRound;
  int rank = 0;
};

// Answer to AskLastCalls.
struct NodeLastCalls {
  Round round = kNoRound;
  std::vector<int> aborted;  // of this node, by now
  std::vector<RankCalls> ranks;
};

// One collective, as the ranks of a node came to it; times are before the answer.
struct ArrivalRow {
  int64_t sequence = 0;
  int last_rank = 0;
  int num_ranks = 1;  // of this node, all that use the group
  absl::Duration last_ago;
  absl::Duration second_ago;  // of the last but one; of one rank alone its own
  absl::Duration first_ago;
  friend bool operator==(const ArrivalRow&, const ArrivalRow&) = default;
};

inline constexpr size_t kArrivalRowsMax = 40;
inline constexpr size_t kArrivalGroupsMax = 4;

struct GroupArrivals {
  std::string name;              // the same on all nodes
  std::string label;             // for people
  bool is_on_device = false;     // the host calls it, and a GPU does it
  std::vector<ArrivalRow> rows;  // oldest first, at most kArrivalRowsMax
  friend bool operator==(const GroupArrivals&, const GroupArrivals&) = default;
};

// Answer to AskArrivals. The groups that were used most, at most kArrivalGroupsMax.
struct NodeArrivals {
  uint64_t question = 0;
  Round round = kNoRound;
  std::vector<GroupArrivals> groups;
};

using NodeWord =
    std::variant<NodeSummary, NodeDetails, NodeStacks, RankAborted, NodeLastCalls, NodeArrivals>;

// The most ranks that an order names.
inline constexpr size_t kRanksNamedMax = 4;

struct AskDetails {
  uint64_t question = 0;
  Round round = kNoRound;
};
struct AskStacks {
  uint64_t question = 0;
  Round round = kNoRound;
  // Ranks at fault, at most kRanksNamedMax: time may not be enough for all.
  std::vector<int> first = {};
};
// What PyTorch says that the ranks of the node called last. The node signals none of them before it
// has answered, for a second at most.
struct AskLastCalls {
  Round round = kNoRound;
};
// When the ranks of the node came to their last collectives (stragglers.h).
struct AskArrivals {
  uint64_t question = 0;
  Round round = kNoRound;
};
// A notice for the console of every node, which adds where the Python of its own ranks among those
// named is.
struct SayNotice {
  Round round = kNoRound;
  Finding finding = Finding::kNobodyWaits;
  std::string text;
  std::vector<int> named;  // ranks that `text` describes, at most kRanksNamedMax
};
struct SayRecovery {
  Round round = kNoRound;
  std::string text;
};
// Says which ranks are slow, or that none is any more.
struct SaySlow {
  Round round = kNoRound;
  bool is_over = false;
  std::string text;
};
// The verdict, for console and report of every node. It may come again, with the same question.
struct SayVerdict {
  uint64_t question = 0;  // of the AskStacks before it
  Round round = kNoRound;
  Diagnosis diagnosis;
  std::string reason;
  std::string action;
  // Ago, when it is said: see Verdict; and that it was a hang.
  absl::Duration since_detected;
  absl::Duration since_decided;
  std::vector<RankReport> ranks;  // those at fault first, then some of the others
  // Ranks whose workers are to be ended by their node, if nothing has moved there since.
  std::vector<int> to_end;
  // The server ends the attempt itself, and goes on without the nodes at fault: `to_end` is empty.
  bool replaces = false;
};

// Aborts of ranks, for console and report of every node, once a round.
struct SayAborts {
  Round round = kNoRound;
  AbortReport report;
};

using WatchOrder = std::variant<AskDetails, AskStacks, SayNotice, SayRecovery, SayVerdict, SaySlow,
                                AskLastCalls, SayAborts, AskArrivals>;

// Sums up `silences`, by rank. Where they are too many, neighbours in the same phase count with the
// least silence of them.
std::vector<SilentRanks> Summarize(const std::vector<RankSilence>& silences);

}  // namespace muster::hangs
