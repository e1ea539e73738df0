// What the nodes of a round say of themselves before its workers start, and what node 0 makes of
// it: who differs from the others, who does not reach whom, and whether the round may run.
//
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"
#include "agent/network/pairs.h"

namespace muster::agent {

// What must be alike on all nodes, by name for people: "PyTorch" -> "2.15.0".
using NodeFacts = absl::btree_map<std::string, std::string>;

// The difference between clocks of nodes from which on it is said.
inline constexpr double kClockOffsetMax = 1.0;  // seconds

// The report of one node on its part of the check; travels through the round's store.
struct NodeReport {
  PairEnd end;
  NodeFacts facts;
  std::vector<FailedPair> failed;      // `from` is this node
  std::optional<double> clock_offset;  // seconds that this node's clock is ahead of node 0's
  bool requires_network = false;       // --network=require
  bool requires_likeness = false;      // --strict_nodes
};
std::string Encode(const NodeReport& report);
// What is not as Encode writes it is left out.
NodeReport DecodeNodeReport(absl::string_view text);

// One sentence per fact in which nodes differ, naming at most three of the odd ones:
// "PyTorch: node3 has 2.14.0, the other 3 nodes 2.15.0". A fact that a node does not know is not
// compared with those that do.
std::vector<std::string> CompareNodes(const std::vector<NodeReport>& reports);

// More failed pairs than so many are not said one by one: of a thousand nodes whose network is down
// every node would be sent eight thousand sentences.
inline constexpr size_t kPairsSaidMax = 128;

struct RoundJudgement {
  // One sentence for each failed pair, and one for those beyond kPairsSaidMax.
  std::vector<std::string> network;
  std::vector<std::string> differences;  // CompareNodes
  // The reason for which the job ends; empty: it does not.
  std::string refusal;
  // Each once: nodes that must reach each other and do not, so that no worker starts before the
  // rendezvous has said who goes on.
  std::vector<FailedPair> failed;
};
std::string Encode(const RoundJudgement& judgement);
RoundJudgement DecodeRoundJudgement(absl::string_view text);

// `reports` by node rank. Of nodes that did not report, `missing` says which and why; empty: all
// did.
RoundJudgement JudgeRound(const std::vector<NodeReport>& reports, const std::string& missing);

}  // namespace muster::agent
