// What the nodes concerned answer to the AskStacks before a verdict.
//
// Pure. Thread-compatible: one caller at a time (JobWatch).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/gatherings.h"
#include "rendezvous/hangs/judge/hang_judge.h"
#include "rendezvous/hangs/judge/watched_node.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::hangs {

class StacksQuestion {
 public:
  // `reports` are for ranks of the nodes asked, should their stacks not come.
  void Begin(uint64_t question, Round round, Verdict verdict, std::vector<RankReport> reports,
             MonoTime now);
  // Passes over ranks that are not the node's own.
  void Take(const WatchedNode& node, NodeStacks stacks);

  const Verdict& verdict() const { return verdict_; }
  // A rank has, of a node that has answered: it is no hang.
  bool HasMoved() const { return has_moved_; }
  bool HasShown(Incarnation node) const { return shown_.contains(node); }
  // What is to be said, but for what follows from it. `unseen` is added to the reason.
  SayVerdict MakeVerdict(const std::vector<Gathering>& gatherings, const std::string& unseen,
                         MonoTime now) const;

 private:
  uint64_t question_ = 0;
  Round round_ = kNoRound;
  Verdict verdict_;
  MonoTime decided_at_;
  bool has_moved_ = false;
  std::vector<RankReport> reports_;
  absl::btree_set<Incarnation> shown_;  // nodes that have answered
};

}  // namespace muster::hangs
