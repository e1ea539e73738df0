// Which nodes of a round try to reach which before its workers start, and what it means if one does
// not reach another.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

enum class PairFault {
  kNone,
  kRefused,  // nobody listens there, or a firewall says so
  kNoRoute,
  kTimeOut,  // packets are lost
  kMtu,      // small packets pass, full ones do not
};

// How far a conversation with a peer has come.
enum class PairStage { kConnecting, kGreeting, kBulk, kDone };

// What is at fault with a conversation that has not come further than `stage` in time, in any of
// several attempts.
// `connect_errno`: of the last attempt to connect; 0: it has not been answered.
PairFault FaultOf(PairStage stage, int connect_errno);

// A word for the report of a node, and back; an unknown word is kTimeOut.
std::string ToString(PairFault fault);
PairFault PairFaultOf(const std::string& word);

struct FailedPair {
  int from = 0;
  int to = 0;
  PairFault fault = PairFault::kTimeOut;
  friend bool operator==(const FailedPair&, const FailedPair&) = default;
};

// A node of the round, for sentences.
struct PairEnd {
  std::string name;
  std::string address;
  std::string interface;  // empty: not known
};

// "node2 (10.0.0.2, eth0) does not reach node3 (10.0.0.3): the connection is refused".
std::string Describe(const PairEnd& from, const PairEnd& to, PairFault fault);

// The nodes that have to go for no failed pair to be left, ascending: again and again the one with
// most failed pairs; of several, the one with the highest rank. So the larger side of a network in
// two parts stays, and of equal sides that of node 0.
std::vector<int> NodesToLeave(std::vector<FailedPair> failed);

}  // namespace muster::agent
