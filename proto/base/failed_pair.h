// Two nodes of a round that do not reach each other, as the check of the network before the start
// of workers has found (agent/network).
//
// Pure values.
#pragma once

#include <cstddef>
#include <string>

namespace muster {

enum class PairFault {
  kNone,
  kRefused,  // nobody listens there, or a firewall says so
  kNoRoute,
  kTimeOut,  // packets are lost
  kMtu,      // small packets pass, full ones do not
};

// One word for the fault, and back; an unknown word is kTimeOut.
std::string ToString(PairFault fault);
PairFault PairFaultOf(const std::string& word);

// Node ranks of one round.
struct FailedPair {
  int from = 0;
  int to = 0;
  PairFault fault = PairFault::kTimeOut;
  friend bool operator==(const FailedPair&, const FailedPair&) = default;
};

// More pairs than this are not told to the rendezvous: all pairs of 64 nodes, both ways.
inline constexpr size_t kMaxFailedPairs = 4096;

}  // namespace muster
