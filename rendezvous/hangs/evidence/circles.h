// Finds which of the ranks that wait for each other in a circle has closed it:
//
// - the rank that went on to a collective without the send or receive for which another waits;
// - the rank that is in a group's collective and not in the new_group that others are in;
// - of the ranks that use two groups of the same ranks in opposite orders, the fewer;
// - the rank of a mesh that alone has left the order in which the others call their groups
//   (call_order.h);
// - outside of meshes, the rank without which no circle is left, if there is one such rank alone;
// - in anything else none of them: all are named.
//
// Pure. Cost: linear in the circle's ranks and the members of its groups, but for a sort.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/hangs/evidence/evidence_index.h"
#include "rendezvous/hangs/evidence/stalls.h"
#include "rendezvous/hangs/evidence/wait_graph.h"

namespace muster::hangs {

struct Circle {
  std::vector<int> nodes;   // of the wait graph, in which ranks have their indices
  std::vector<int> ranks;   // indices, sorted
  std::vector<int> stalls;  // into those of FindStalls
};

struct CircleBreak {
  std::vector<int> culprits;  // indices; empty: all ranks of the circle are named
  std::string words;          // what they did, beginning with them
  // What the culprits have left out: a transfer (into `transfers`) or a stall; kNothing where they
  // have called all of it, in another order.
  int transfer = kNothing;
  int stall = kNothing;
  static constexpr int kNothing = -1;
  bool is_sure = true;  // else it is likely, and nobody is to be ended for it
};

// `graph` is the one that `circle` was found in.
CircleBreak FindBreak(const EvidenceIndex& index, const std::vector<Stall>& stalls,
                      const std::vector<Transfer>& transfers, const WaitGraph& graph,
                      const Circle& circle);

// "recv" for a send, "send" for a receive: what the other end of a transfer has to call.
std::string AnswerTo(const Operation& transfer);

}  // namespace muster::hangs
