// Finds the slow ranks among those of all nodes that measure their paces: windows of one time are
// compared, once all of these nodes have a new one (stragglers.h).
//
// Pure. Thread-compatible: one caller at a time (JobWatch).
#pragma once

#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "proto/base/ids.h"
#include "rendezvous/hangs/judge/stragglers.h"
#include "rendezvous/hangs/judge/watched_node.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::hangs {

class PaceWatch {
 public:
  void StartRound(const std::vector<WatchedNode>& nodes);
  // The paces of `node`, a member of the round. Something if others are slow now than before.
  std::optional<Stragglers::Change> OnPaces(const WatchedNode& node, const NodePaces& paces);

 private:
  // One that has measured no window yet is not waited for.
  struct Node {
    int num_ranks = 1;
    NodePaces paces;
    bool is_new = false;  // not compared yet
  };

  Stragglers stragglers_;
  absl::btree_map<int, Node> nodes_;  // by first rank
  int num_measuring_ = 0;
  int num_new_ = 0;  // of those that measure
};

}  // namespace muster::hangs
