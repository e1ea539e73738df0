#include "rendezvous/hangs/judge/abort_watch.h"

#include <algorithm>
#include <utility>

namespace muster::hangs {
namespace {

constexpr uint64_t kOnceARound = 0;  // so the question has no number

}  // namespace

LastCallsTimes TimesForLastCalls(absl::Duration grace) {
  const absl::Duration all = std::min(std::max(absl::Seconds(1), grace / 30), grace / 2);
  return {.workers = all * 0.8, .answers = all * 0.9, .all = all};
}

void AbortWatch::StartRound() {
  aborted_.clear();
  ranks_.clear();
  poll_.Close();
  said_.reset();
}

AbortWatch::Orders AbortWatch::OnWord(const NodeTable& nodes, const WatchedNode& from,
                                      const RankAborted& word, MonoTime now) {
  if (!Holds(from, word.rank)) return {};
  if (said_) return {OrderTo{from.agent, *said_}};
  aborted_.insert(word.rank);
  if (poll_.IsOpen()) return {};
  poll_.Ask(kOnceARound, nodes.TakingPart(), now + times_.answers);
  return poll_.Tell(AskLastCalls{nodes.round()});
}

void AbortWatch::OnWord(const WatchedNode& from, NodeLastCalls word) {
  if (!poll_.Take(from.agent, kOnceARound)) return;
  for (const int rank : word.aborted) {
    if (Holds(from, rank)) aborted_.insert(rank);
  }
  // Only the node's own ranks count, each once.
  absl::btree_set<int> seen;
  for (RankCalls& rank : word.ranks) {
    if (!Holds(from, rank.rank) || !seen.insert(rank.rank).second) continue;
    ranks_.push_back(std::move(rank));
  }
}

AbortWatch::Orders AbortWatch::Tick(const NodeTable& nodes, MonoTime now) {
  if (!poll_.IsOver(now)) return {};
  poll_.Close();
  said_ = SayAborts{nodes.round(), CompareLastCalls({aborted_.begin(), aborted_.end()},
                                                    nodes.num_ranks(), ranks_)};
  ranks_.clear();
  return nodes.TellAll(*said_);
}

}  // namespace muster::hangs
