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

// What a node of a round that lists no peers tells its neighbours before a check, through the
// round's store.
struct Introduction {
  std::string name;
  std::string address;
  int port = 0;  // that it listens on for the check
  friend bool operator==(const Introduction&, const Introduction&) = default;
};
std::string Encode(const Introduction& introduction);
// What is not as Encode writes it has port 0.
Introduction DecodeIntroduction(absl::string_view text);

// "node2 (10.0.0.2, eth0) does not reach node3 (10.0.0.3): the connection is refused".
std::string Describe(const PairEnd& from, const PairEnd& to, PairFault fault);

}  // namespace muster::agent
