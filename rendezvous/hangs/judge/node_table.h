// The members of a round, and what each has said last of its ranks.
//
// Pure. Thread-compatible: one caller at a time (JobWatch).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "proto/base/ids.h"
#include "rendezvous/hangs/judge/watched_node.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::hangs {

class NodeTable {
 public:
  struct Node {
    WatchedNode about;
    std::optional<NodeSummary> summary;  // nothing: its agent has said nothing in this round
    bool is_suspicious = false;
  };

  // `nodes` are all members of `round`, by first rank. What they have learned stays, and so do the
  // spares.
  void StartRound(Round round, std::vector<WatchedNode> nodes);

  Round round() const { return round_; }
  size_t size() const { return nodes_.size(); }
  auto begin() const { return nodes_.begin(); }
  auto end() const { return nodes_.end(); }
  // An agent that is no member has no node: null.
  const Node* Find(Incarnation agent) const;
  const Node* OfRank(int rank) const;
  absl::btree_set<Incarnation> OfRanks(const std::vector<int>& ranks) const;

  // A member's word of this round.
  void Take(Incarnation from, NodeSummary summary);
  // What a member had learned when it said so last.
  LearnedSilences TakeLearned(Incarnation from, const LearnedSilences& learned);

  // Nothing before the first call of SetSpares.
  void SetSpares(Spares spares) { spares_ = spares; }
  const Spares& spares() const { return spares_; }

  // Some rank has been silent for long enough to be looked into.
  bool IsSomebodySilent() const { return num_suspicious_ > 0; }
  // Ranks wait for the start for that long, as the node of rank 0 has said last.
  bool IsStartSilent() const { return is_start_suspicious_; }
  // The ranks of all nodes, and how many of them have ended well.
  int num_ranks() const { return num_ranks_; }
  int num_ended() const { return num_ended_; }
  // Where nodes differ, the most patient counts.
  absl::Duration hang_timeout() const { return hang_timeout_; }

  // All that have said a word, and the order for each of them.
  absl::btree_set<Incarnation> TakingPart() const;
  std::vector<OrderTo> TellAll(const WatchOrder& order) const;

 private:
  Round round_ = kNoRound;
  absl::btree_map<Incarnation, Node> nodes_;
  absl::btree_map<int, Incarnation> agent_of_first_rank_;
  absl::btree_map<Incarnation, LearnedSilences> learned_from_;
  Spares spares_;
  absl::Duration hang_timeout_;
  int num_ranks_ = 0;
  int num_ended_ = 0;
  int num_suspicious_ = 0;
  bool is_start_suspicious_ = false;
};

}  // namespace muster::hangs
