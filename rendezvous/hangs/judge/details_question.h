// What the nodes of a round answer to one AskDetails: together the evidence of all ranks.
//
// Pure. Thread-compatible: one caller at a time (JobWatch).
#pragma once

#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/evidence.h"
#include "rendezvous/hangs/evidence/gatherings.h"
#include "rendezvous/hangs/evidence/merge_evidence.h"
#include "rendezvous/hangs/evidence/silence_meter.h"
#include "rendezvous/hangs/judge/node_table.h"
#include "rendezvous/hangs/judge/poll.h"

namespace muster::hangs {

class DetailsQuestion {
 public:
  // The orders that ask all of `nodes` that take part.
  std::vector<OrderTo> Ask(uint64_t question, const NodeTable& nodes, MonoTime now);
  // Only the node's own ranks count, each once. Who has come to PyTorch's store, the node of rank 0
  // knows alone.
  void Take(const WatchedNode& node, NodeDetails details);

  // A debugger holds a rank.
  bool IsHeld() const { return is_held_; }
  const Poll& poll() const { return poll_; }
  void Close() { poll_.Close(); }
  const std::vector<Gathering>& gatherings() const { return gatherings_; }
  // Ranks of nodes that have answered.
  std::vector<RankSilence> Silences(const NodeTable& nodes) const;
  // Nothing more is awaited: nothing is known of the ranks of the other nodes.
  void Finish(const NodeTable& nodes);
  const Evidence& evidence() const { return evidence_.merged(); }

  // Nodes that answered and hold some of `ranks`, up to the `max`th of `out`.
  void Select(const NodeTable& nodes, const std::vector<int>& ranks, size_t max,
              absl::btree_set<Incarnation>& out) const;
  // The first few of whom something is known, of those at fault, else of those who wait.
  std::vector<RankReport> ReportsOfNamed(const Diagnosis& diagnosis) const;
  // "; nothing is known of ranks 2 and 3 (node2: ...)", or nothing.
  std::string DescribeUnseen(const NodeTable& nodes) const;

 private:
  Poll poll_;
  bool is_held_ = false;
  EvidenceMerger evidence_{kNoRound};
  std::vector<Gathering> gatherings_;
};

// What is said of a rank whose node shows no stacks.
RankReport ReportOf(const RankEvidence& rank);

}  // namespace muster::hangs
