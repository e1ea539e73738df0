#include "agent/network/pairs.h"

#include <cerrno>
#include <utility>

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

std::string Encode(const PastCheck& past) {
  std::string text = absl::StrCat(past.instance, " ", past.round, " ", past.rank);
  for (const FailedPair& pair : past.failed) {
    absl::StrAppend(&text, " ", pair.to, ":", ToString(pair.fault));
  }
  return text;
}

PastCheck DecodePastCheck(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  PastCheck past;
  if (words.size() < 3 || !absl::SimpleAtoi(words[0], &past.instance) ||
      !absl::SimpleAtoi(words[1], &past.round) || !absl::SimpleAtoi(words[2], &past.rank)) {
    return {};
  }
  for (size_t i = 3; i < words.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(words[i], ':');
    FailedPair pair{.from = past.rank, .fault = PairFaultOf(std::string(parts.second))};
    if (!absl::SimpleAtoi(parts.first, &pair.to)) return {};
    past.failed.push_back(pair);
  }
  return past;
}

PairFault KnownFault(const PastCheck& from, const PastCheck& to) {
  if (from.round < 0 || from.round != to.round || from.instance != to.instance) {
    return PairFault::kNone;
  }
  const auto known =
      absl::c_find_if(from.failed, [&](const FailedPair& pair) { return pair.to == to.rank; });
  return known == from.failed.end() ? PairFault::kNone : known->fault;
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
