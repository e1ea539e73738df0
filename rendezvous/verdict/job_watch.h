// The hang watch of a job over several nodes: what their agents say meets here, and is judged by
// the core that judges a single node's (hang_watch_core.h).
//
//   summaries of all nodes -> somebody is silent, or nobody comes to the start -> AskDetails to all
//   -> Diagnose -> Judge
//     -> a notice: SayNotice to all
//     -> a verdict: AskStacks to a few; nothing has moved there -> SayVerdict to all, and
//        ReplaceNodes where --watch=replace of the nodes at fault allows it and the job can do
//        without them
//   a window of all nodes that measure one -> others are slow now than before -> SaySlow to all
//   a rank comes last to nearly every collective -> SaySlow to all (late_ranks.h)
//   a rank has aborted -> AskLastCalls to all -> SayAborts to all (abort_watch.h), also while the
//   round stops
//
// Silence is what the agents have watched of it, and never grows here: a node that is not heard, or
// that was stopped, makes nobody silent. Who has not come to PyTorch's store is told by the node of
// rank 0 for the ranks of all (gatherings.h). What no agent tells is out of sight, and is never
// judged; notice and verdict say what that is.
//
// Pure. Thread-compatible: one caller at a time (rendezvous/server/job_loop.h, on its loop).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "rendezvous/verdict/abort_watch.h"
#include "rendezvous/verdict/hang_watch_core.h"
#include "rendezvous/verdict/late_ranks.h"
#include "rendezvous/verdict/merge_evidence.h"
#include "rendezvous/verdict/stragglers.h"
#include "rendezvous/verdict/watch_messages.h"
#include "rendezvous/verdict/watched_node.h"

namespace muster::verdict {

// For the rendezvous: these members are to leave the job, which goes on without them.
struct ReplaceNodes {
  std::vector<Incarnation> nodes;
  std::string why;
};

// What the job can do without, as far as the rendezvous knows.
struct Spares {
  int num_nodes = 0;  // so many members at once, with those that wait for a place
  Incarnation host;   // of the server, which never leaves; 0: none
};

class JobWatch {
 public:
  // In the order in which they are to be performed.
  using Orders = std::vector<std::variant<OrderTo, ReplaceNodes>>;

  // `nodes` are all members of `round`, by first rank. What was learned stays.
  void StartRound(Round round, std::vector<WatchedNode> nodes, MonoTime now);
  void StopRound();
  // As it is now; none before the first call.
  void SetSpares(Spares spares) { spares_ = spares; }
  // The job's --shutdown_timeout; see TimesForLastCalls.
  void SetGrace(absl::Duration grace) { aborts_.SetGrace(grace); }
  bool IsWatching() const { return !nodes_.empty(); }

  // Words of another round, of strangers, and answers to old questions change nothing.
  Orders OnWord(Incarnation from, NodeWord word, MonoTime now);
  Orders Tick(MonoTime now);
  // Earliest instant at which Tick would return something.
  MonoTime NextDeadline() const;

  const HangLimits& limits() const { return core_.limits(); }

 private:
  enum class Stage { kListening, kAsking, kGathering };
  // Whether what is looked into has been said to be a hang, and whether something follows from it.
  enum class Judged { kNo, kOnlySaid, kActsOnIt };
  struct Node {
    WatchedNode about;
    std::optional<NodeSummary> summary;  // nothing: its agent has said nothing in this round
    bool is_suspicious = false;
    bool has_answered = false;
    bool has_new_paces = false;
  };
  using Nodes = absl::btree_map<Incarnation, Node>;
  // By what programs mark, and by when ranks of PyTorch call their collectives.
  struct SlowRanks {
    Stragglers by_marks;
    LateWatch by_calls;
  };

  void On(Node& node, NodeSummary&& summary, MonoTime now);
  void On(Node& node, NodeDetails&& details, MonoTime now);
  void On(Node& node, NodeStacks&& stacks, MonoTime now);
  void Absorb(Incarnation from, const NodeSummary& summary);
  void TakeSummary(Node& node, NodeSummary summary);
  bool WantsDetails() const;

  void TakePaces(Node& node, const NodePaces& paces);
  void ComparePaces(Orders& out);
  void SayLate(const std::optional<std::string>& words, Orders& out) const;
  void Advance(MonoTime now, Orders& out);
  void Ask(MonoTime now, Orders& out);
  void Decide(MonoTime now, Orders& out);
  void Gather(const Verdict& verdict, MonoTime now, Orders& out);
  void Conclude(MonoTime now, Orders& out);
  SayVerdict MakeVerdict(const Verdict& verdict, MonoTime now);
  // False if the nodes at fault are not replaced; then `why_not` says why, where they were to be.
  bool Replace(SayVerdict& say, std::string& why_not, Orders& out);
  std::string WhyNotReplaced(const Diagnosis& diagnosis,
                             const absl::btree_set<Incarnation>& at_fault) const;
  void TellAll(const WatchOrder& order, Orders& out) const;
  void AddUnseenRanks();
  // The silences of the ranks of nodes that have answered.
  std::vector<RankSilence> AllSilences() const;
  // Nodes that answered and hold some of `ranks`, the first few.
  void SelectNodes(const std::vector<int>& ranks, size_t max,
                   absl::btree_set<Incarnation>& out) const;
  const Node* NodeOfRank(int rank) const;
  absl::btree_set<Incarnation> NodesOf(const std::vector<int>& ranks) const;
  RankReport ReportOf(const RankEvidence& rank) const;
  std::string DescribeRanks(const Diagnosis& diagnosis) const;
  // "; nothing is known of ranks 2 and 3 (node2: ...)", or nothing.
  std::string DescribeUnseen() const;

  HangWatchCore core_{absl::Minutes(10)};
  SlowRanks slow_;
  AbortWatch aborts_;
  absl::btree_map<Incarnation, LearnedSilences> learned_from_;  // of the members
  Spares spares_;

  // What belongs to the round.
  Round round_ = kNoRound;
  Nodes nodes_;
  absl::btree_map<int, Incarnation> agent_of_first_rank_;
  absl::Duration hang_timeout_;  // the longest of the nodes
  int num_suspicious_ = 0;
  bool is_start_suspicious_ = false;  // as the node of rank 0 has said last
  int num_measuring_ = 0;             // nodes that know their paces
  int num_new_paces_ = 0;             // of those, with a window that has not been compared
  Stage stage_ = Stage::kListening;
  uint64_t question_ = 0;
  absl::btree_set<Incarnation> awaited_;  // who has not answered the question yet
  MonoTime deadline_;                     // of the question
  MonoTime next_question_;
  bool is_held_ = false;
  bool has_moved_ = false;
  EvidenceMerger evidence_{kNoRound};
  std::vector<Gathering> gatherings_;  // as the node of rank 0 has answered
  std::optional<Verdict> verdict_;     // while evidence is gathered for it
  MonoTime decided_at_;                // that verdict
  std::vector<RankReport> reports_;
  absl::btree_set<Incarnation> shown_;  // nodes that have answered with their stacks
  Judged judged_ = Judged::kNo;
  // The last that was said and is to be performed, until it has been.
  std::optional<SayVerdict> said_;
  MonoTime say_again_;
};

}  // namespace muster::verdict
