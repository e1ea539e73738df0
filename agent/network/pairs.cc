#include "agent/network/pairs.h"

#include <cerrno>

#include "absl/algorithm/container.h"
#include "absl/container/btree_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster::agent {
namespace {

struct FaultSentence {
  PairFault fault;
  const char* sentence;
};
constexpr FaultSentence kSentences[] = {
    {PairFault::kNone, "it does"},
    {PairFault::kRefused,
     "the connection is refused; see the firewall there (--worker_ports=A-B names the ports that "
     "it must let in)"},
    {PairFault::kNoRoute, "there is no route; see the addresses and routes of both"},
    {PairFault::kTimeOut, "no answer; packets are lost on the way, or a firewall drops them"},
    {PairFault::kMtu,
     "small packets pass and full ones do not: the path has a smaller MTU than the interface; "
     "lower the interface's"},
};

// Source: SplitMix64, Steele, Lea and Flood 2014.
uint64_t NextRandom(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

absl::btree_set<int> StridesOf(int num_nodes, uint64_t seed) {
  absl::btree_set<int> strides;
  if (num_nodes <= kAllPairsNodesMax) {
    for (int stride = 1; stride < num_nodes; ++stride) strides.insert(stride);
    return strides;
  }
  strides.insert(1);  // one ring through all nodes, so that none is left out
  while (strides.size() < kNeighbours) {
    strides.insert(1 + static_cast<int>(NextRandom(seed) % static_cast<uint64_t>(num_nodes - 1)));
  }
  return strides;
}

}  // namespace

Neighbours PlanPairs(int num_nodes, int self, uint64_t seed) {
  Neighbours neighbours;
  for (const int stride : StridesOf(num_nodes, seed)) {
    neighbours.to.push_back((self + stride) % num_nodes);
    neighbours.from.push_back((self + num_nodes - stride) % num_nodes);
  }
  absl::c_sort(neighbours.to);
  absl::c_sort(neighbours.from);
  return neighbours;
}

// Lines: the name comes last, since it may be anything.
std::string Encode(const Introduction& introduction) {
  return absl::StrCat(introduction.port, "\n", introduction.address, "\n", introduction.name);
}

Introduction DecodeIntroduction(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, absl::MaxSplits('\n', 2));
  int port = 0;
  if (lines.size() < 3 || !absl::SimpleAtoi(lines[0], &port)) return {};
  return {.name = std::string(lines[2]), .address = std::string(lines[1]), .port = port};
}

PairFault FaultOf(PairStage stage, int connect_errno) {
  switch (stage) {
    case PairStage::kDone:
      return PairFault::kNone;
    case PairStage::kBulk:
      return PairFault::kMtu;
    case PairStage::kGreeting:
      return PairFault::kTimeOut;
    case PairStage::kConnecting:
      break;
  }
  switch (connect_errno) {
    case ECONNREFUSED:
      return PairFault::kRefused;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EADDRNOTAVAIL:
    case EACCES:
    case EPERM:
      return PairFault::kNoRoute;
    default:
      return PairFault::kTimeOut;
  }
}

std::string Describe(const PairEnd& from, const PairEnd& to, PairFault fault) {
  const char* sentence = "";
  for (const FaultSentence& entry : kSentences) {
    if (entry.fault == fault) sentence = entry.sentence;
  }
  return absl::StrCat(from.name, " (", from.address, from.interface.empty() ? "" : ", ",
                      from.interface, ") does not reach ", to.name, " (", to.address,
                      "): ", sentence);
}

}  // namespace muster::agent
