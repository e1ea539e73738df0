#include "rendezvous/hangs/judge/abort_watch.h"

#include <algorithm>
#include <utility>

namespace muster::hangs {

LastCallsTimes TimesForLastCalls(absl::Duration grace) {
  const absl::Duration all = std::min(std::max(absl::Seconds(1), grace / 30), grace / 2);
  return {.workers = all * 0.8, .answers = all * 0.9, .all = all};
}

void AbortWatch::StartRound(Round round, const std::vector<WatchedNode>& nodes) {
  round_ = round;
  nodes_.clear();
  for (const WatchedNode& node : nodes) nodes_[node.agent] = {.about = node};
  aborted_.clear();
  ranks_.clear();
  awaited_.clear();
  deadline_.reset();
  said_.reset();
}

void AbortWatch::OnSummary(Incarnation from) {
  const auto node = nodes_.find(from);
  if (node != nodes_.end()) node->second.takes_part = true;
}

AbortWatch::Orders AbortWatch::OnWord(Incarnation from, const RankAborted& word, MonoTime now) {
  const auto node = nodes_.find(from);
  if (word.round != round_ || node == nodes_.end() || !Holds(node->second.about, word.rank)) {
    return {};
  }
  node->second.takes_part = true;
  if (said_) return {OrderTo{from, *said_}};
  aborted_.insert(word.rank);
  if (deadline_) return {};
  deadline_ = now + times_.answers;
  for (const auto& [agent, each] : nodes_) {
    if (each.takes_part) awaited_.insert(agent);
  }
  return TellAll(AskLastCalls{round_});
}

AbortWatch::Orders AbortWatch::OnWord(Incarnation from, NodeLastCalls word) {
  if (word.round != round_ || awaited_.erase(from) == 0) return {};
  const Node& node = nodes_.at(from);
  for (const int rank : word.aborted) {
    if (Holds(node.about, rank)) aborted_.insert(rank);
  }
  // Only the node's own ranks count, each once.
  absl::btree_set<int> seen;
  for (RankCalls& rank : word.ranks) {
    if (!Holds(node.about, rank.rank) || !seen.insert(rank.rank).second) continue;
    ranks_.push_back(std::move(rank));
  }
  return awaited_.empty() ? Conclude() : Orders();
}

AbortWatch::Orders AbortWatch::Tick(MonoTime now) {
  return now >= NextDeadline() ? Conclude() : Orders();
}

MonoTime AbortWatch::NextDeadline() const { return deadline_.value_or(MonoTime::InfiniteFuture()); }

AbortWatch::Orders AbortWatch::Conclude() {
  deadline_.reset();
  awaited_.clear();
  int world_size = 0;
  for (const auto& [agent, node] : nodes_) world_size += node.about.num_ranks;
  said_ =
      SayAborts{round_, CompareLastCalls({aborted_.begin(), aborted_.end()}, world_size, ranks_)};
  ranks_.clear();
  return TellAll(*said_);
}

AbortWatch::Orders AbortWatch::TellAll(const WatchOrder& order) const {
  Orders out;
  for (const auto& [agent, node] : nodes_) {
    if (node.takes_part) out.push_back({agent, order});
  }
  return out;
}

}  // namespace muster::hangs
