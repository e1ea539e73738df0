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

// What the job can do without, as far as the rendezvous knows.
struct Spares {
  int num_nodes = 0;  // so many members at once, with those that wait for a place
  Incarnation host;   // of the server, which never leaves; 0: none
};

struct OrderTo {
  Incarnation to;
  WatchOrder order;
};

}  // namespace muster::hangs
