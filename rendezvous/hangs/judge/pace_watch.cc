#include "rendezvous/hangs/judge/pace_watch.h"

#include <algorithm>

namespace muster::hangs {

void PaceWatch::StartRound(const std::vector<WatchedNode>& nodes) {
  *this = PaceWatch();
  for (const WatchedNode& node : nodes) nodes_[node.first_rank] = {.num_ranks = node.num_ranks};
}

std::optional<Stragglers::Change> PaceWatch::OnPaces(const WatchedNode& node,
                                                     const NodePaces& paces) {
  Node& own = nodes_.at(node.first_rank);
  const int64_t before = own.paces.window;
  const bool is_new = paces.window != 0;
  if (paces.window == before) return std::nullopt;
  num_measuring_ += static_cast<int>(before == 0) - static_cast<int>(!is_new);
  num_new_ += static_cast<int>(is_new) - static_cast<int>(own.is_new);
  own.is_new = is_new;
  own.paces = paces;
  if (num_measuring_ == 0 || num_new_ < num_measuring_) return std::nullopt;
  num_new_ = 0;
  std::vector<RankPace> all;
  for (auto& [first_rank, each] : nodes_) {
    each.is_new = false;
    const std::vector<absl::Duration>& times = each.paces.own;
    for (int i = 0; i < std::min(each.num_ranks, static_cast<int>(times.size())); ++i) {
      if (times[i] > absl::ZeroDuration()) all.push_back({first_rank + i, times[i]});
    }
  }
  return stragglers_.OnWindow(all);
}

}  // namespace muster::hangs
