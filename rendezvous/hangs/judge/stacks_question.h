// What the nodes concerned answer to the AskStacks before a verdict.
//
// Pure. Thread-compatible: one caller at a time (JobWatch).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/gatherings.h"
#include "rendezvous/hangs/judge/hang_judge.h"
#include "rendezvous/hangs/judge/poll.h"
#include "rendezvous/hangs/judge/watched_node.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::hangs {

class StacksQuestion {
 public:
  // The orders that ask `nodes`.
  std::vector<OrderTo> Ask(AskStacks ask, absl::btree_set<Incarnation> nodes, Verdict verdict,
                           MonoTime now);
  // What is said of a rank of a node that is asked, should its stack not come.
  void Expect(RankReport report) { reports_.push_back(std::move(report)); }
  // Passes over ranks that are not the node's own.
  void Take(const WatchedNode& node, NodeStacks stacks);

  const Verdict& verdict() const { return verdict_; }
  // A rank has, of a node that has answered: it is no hang.
  bool HasMoved() const { return has_moved_; }
  const Poll& poll() const { return poll_; }
  void Close() { poll_.Close(); }
  // What is to be said, but for what follows from it. `unseen` is added to the reason.
  SayVerdict MakeVerdict(const std::vector<Gathering>& gatherings, const std::string& unseen,
                         MonoTime now) const;

 private:
  AskStacks ask_;
  Poll poll_;
  Verdict verdict_;
  MonoTime decided_at_;
  bool has_moved_ = false;
  std::vector<RankReport> reports_;
};

}  // namespace muster::hangs
