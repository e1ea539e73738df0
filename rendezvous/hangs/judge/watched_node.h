// The nodes to whose agents the server speaks about hangs of a job.
//
// Pure values.
#pragma once

#include <string>

#include "proto/base/ids.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::hangs {

// A member of the round.
struct WatchedNode {
  Incarnation agent;
  std::string name;
  int first_rank = 0;
  int num_ranks = 1;
};

inline bool Holds(const WatchedNode& node, int rank) {
  return rank >= node.first_rank && rank < node.first_rank + node.num_ranks;
}

struct OrderTo {
  Incarnation to;
  WatchOrder order;
};

}  // namespace muster::hangs
