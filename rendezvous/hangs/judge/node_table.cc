#include "rendezvous/hangs/judge/node_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace muster::hangs {

void NodeTable::StartRound(Round round, std::vector<WatchedNode> nodes) {
  nodes_.clear();
  agent_of_first_rank_.clear();
  hang_timeout_ = absl::ZeroDuration();
  num_ranks_ = num_ended_ = 0;
  num_suspicious_ = 0;
  is_start_suspicious_ = false;
  round_ = round;
  for (WatchedNode& node : nodes) {
    const Incarnation agent = node.agent;
    agent_of_first_rank_[node.first_rank] = agent;
    num_ranks_ += node.num_ranks;
    nodes_[agent] = {.about = std::move(node)};
  }
  absl::erase_if(learned_from_, [&](const auto& entry) { return !nodes_.contains(entry.first); });
}

const NodeTable::Node* NodeTable::Find(Incarnation agent) const {
  const auto node = nodes_.find(agent);
  return node == nodes_.end() ? nullptr : &node->second;
}

const NodeTable::Node* NodeTable::OfRank(int rank) const {
  auto after = agent_of_first_rank_.upper_bound(rank);
  if (after == agent_of_first_rank_.begin()) return nullptr;
  const Node& node = nodes_.at(std::prev(after)->second);
  return Holds(node.about, rank) ? &node : nullptr;
}

absl::btree_set<Incarnation> NodeTable::OfRanks(const std::vector<int>& ranks) const {
  absl::btree_set<Incarnation> nodes;
  for (const int rank : ranks) {
    if (const Node* node = OfRank(rank)) nodes.insert(node->about.agent);
  }
  return nodes;
}

void NodeTable::Take(Incarnation from, NodeSummary summary) {
  Node& node = nodes_.at(from);
  const bool was_suspicious = std::exchange(
      node.is_suspicious,
      std::any_of(summary.silent.begin(), summary.silent.end(),
                  [](const SilentRanks& ranks) { return ranks.silent_for >= kSuspiciousSilence; }));
  num_suspicious_ += static_cast<int>(node.is_suspicious) - static_cast<int>(was_suspicious);
  if (node.about.first_rank == 0) {
    is_start_suspicious_ = summary.silence_at_start >= kSuspiciousSilence;
  }
  num_ended_ += summary.num_ended - (node.summary ? node.summary->num_ended : 0);
  hang_timeout_ = std::max(hang_timeout_, summary.hang_timeout);
  node.summary = std::move(summary);
}

LearnedSilences NodeTable::TakeLearned(Incarnation from, const LearnedSilences& learned) {
  LearnedSilences& known = learned_from_[from];
  return known == learned ? known : std::exchange(known, learned);
}

absl::btree_set<Incarnation> NodeTable::TakingPart() const {
  absl::btree_set<Incarnation> out;
  for (const auto& [agent, node] : nodes_) {
    if (node.summary) out.insert(agent);
  }
  return out;
}

std::vector<OrderTo> NodeTable::TellAll(const WatchOrder& order) const {
  std::vector<OrderTo> out;
  for (const Incarnation agent : TakingPart()) out.push_back({agent, order});
  return out;
}

}  // namespace muster::hangs
