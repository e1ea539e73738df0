// Which nodes of a round try to reach which before its workers start, and what it means if one does
// not reach another. Who goes on then, the rendezvous decides (rendezvous/core/network_split.h).
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/base/failed_pair.h"

namespace muster::agent {

// Up to here every node tries every other; beyond, each tries kNeighbours of them.
inline constexpr int kAllPairsNodesMax = 64;
inline constexpr int kNeighbours = 8;

struct Neighbours {
  std::vector<int> to;    // node ranks that this node connects to, ascending
  std::vector<int> from;  // that connect to it
  friend bool operator==(const Neighbours&, const Neighbours&) = default;
};

// All nodes get fitting answers from one `seed`. Beyond kAllPairsNodesMax the graph is regular: the
// same strides for every node, drawn from the seed.
Neighbours PlanPairs(int num_nodes, int self, uint64_t seed);

// What a node found in the last check that it has been through: it tells its neighbours of the next
// one, through that round's store.
struct PastCheck {
  uint64_t instance = 0;
  int64_t round = -1;              // -1: there was none
  int rank = -1;                   // of the node, in that round
  std::vector<FailedPair> failed;  // `from` is the node
  friend bool operator==(const PastCheck&, const PastCheck&) = default;
};
std::string Encode(const PastCheck& past);
// What is not as Encode writes it is no check.
PastCheck DecodePastCheck(absl::string_view text);

// Why `from` does not try `to` again: both have been through the same check since they started, and
// this was the fault. kNone: it tries. Both ends must know, so that nobody waits for the other.
PairFault KnownFault(const PastCheck& from, const PastCheck& to);

// How far a conversation with a peer has come.
enum class PairStage { kConnecting, kGreeting, kBulk, kDone };

// What is at fault with a conversation that has not come further than `stage` in time, in any of
// several attempts.
// `connect_errno`: of the last attempt to connect; 0: it has not been answered.
PairFault FaultOf(PairStage stage, int connect_errno);

// A node of the round, for sentences.
struct PairEnd {
  std::string name;
  std::string address;
  std::string interface;  // empty: not known
};

// "node2 (10.0.0.2, eth0) does not reach node3 (10.0.0.3): the connection is refused".
std::string Describe(const PairEnd& from, const PairEnd& to, PairFault fault);

}  // namespace muster::agent
