#include "rendezvous/hangs/evidence/wait_graph.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace muster::hangs {
namespace {

constexpr int kNone = -1;

// Tarjan's algorithm with a stack of its own, since a chain may be as long as the job is wide.
class Components {
 public:
  explicit Components(const WaitGraph& graph)
      : graph_(graph),
        order_(graph.num_nodes(), kNone),
        low_(graph.num_nodes()),
        component_(graph.num_nodes(), kNone) {
    for (int node = 0; node < graph.num_nodes(); ++node) {
      if (order_[node] == kNone) Explore(node);
    }
  }

  int of(int node) const { return component_[node]; }
  int count() const { return count_; }

 private:
  struct Visit {
    int node;
    size_t next_edge;
  };

  void Enter(int node) {
    order_[node] = low_[node] = next_order_++;
    open_.push_back(node);
    visits_.push_back({node, 0});
  }

  void Explore(int root) {
    Enter(root);
    while (!visits_.empty()) {
      Visit& visit = visits_.back();
      const int node = visit.node;
      const std::vector<int>& edges = graph_.edges_of(node);
      if (visit.next_edge < edges.size()) {
        const int to = edges[visit.next_edge++];
        if (order_[to] == kNone) {
          Enter(to);
        } else if (component_[to] == kNone) {
          low_[node] = std::min(low_[node], order_[to]);
        }
        continue;
      }
      visits_.pop_back();
      if (!visits_.empty()) {
        low_[visits_.back().node] = std::min(low_[visits_.back().node], low_[node]);
      }
      if (low_[node] == order_[node]) CloseComponent(node);
    }
  }

  void CloseComponent(int root) {
    int node = kNone;
    do {
      node = open_.back();
      open_.pop_back();
      component_[node] = count_;
    } while (node != root);
    ++count_;
  }

  const WaitGraph& graph_;
  std::vector<int> order_;
  std::vector<int> low_;
  std::vector<int> component_;
  std::vector<int> open_;
  std::vector<Visit> visits_;
  int next_order_ = 0;
  int count_ = 0;
};

}  // namespace

std::vector<std::vector<int>> WaitGraph::Ends() const {
  const Components components(*this);
  std::vector<std::vector<int>> members(components.count());
  std::vector<bool> is_end(components.count(), true);
  std::vector<bool> has_edge(components.count(), false);
  for (int node = 0; node < num_nodes(); ++node) {
    members[components.of(node)].push_back(node);
    for (const int to : out_[node]) {
      has_edge[components.of(to)] = true;
      has_edge[components.of(node)] = true;
      if (components.of(to) != components.of(node)) is_end[components.of(node)] = false;
    }
  }
  std::vector<std::vector<int>> ends;
  for (int c = 0; c < components.count(); ++c) {
    if (is_end[c] && has_edge[c]) ends.push_back(std::move(members[c]));
  }
  std::sort(ends.begin(), ends.end());
  return ends;
}

std::vector<bool> WaitGraph::Reach(const std::vector<int>& targets) const {
  std::vector<std::vector<int>> in(num_nodes());
  for (int node = 0; node < num_nodes(); ++node) {
    for (const int to : out_[node]) in[to].push_back(node);
  }
  std::vector<bool> reaches(num_nodes(), false);
  std::vector<int> to_visit;
  for (const int target : targets) {
    if (reaches[target]) continue;
    reaches[target] = true;
    to_visit.push_back(target);
  }
  while (!to_visit.empty()) {
    const int node = to_visit.back();
    to_visit.pop_back();
    for (const int from : in[node]) {
      if (reaches[from]) continue;
      reaches[from] = true;
      to_visit.push_back(from);
    }
  }
  return reaches;
}

std::vector<int> WaitGraph::FindCircle(const std::vector<bool>& is_marked) const {
  std::vector<bool> seen(num_nodes(), false);
  std::vector<bool> is_on_path(num_nodes(), false);
  std::vector<std::pair<int, size_t>> path;  // with the next edge of each
  for (int root = 0; root < num_nodes(); ++root) {
    if (seen[root] || !is_marked[root]) continue;
    path.emplace_back(root, 0);
    seen[root] = is_on_path[root] = true;
    while (!path.empty()) {
      auto& [node, next_edge] = path.back();
      if (next_edge == out_[node].size()) {
        is_on_path[node] = false;
        path.pop_back();
        continue;
      }
      const int to = out_[node][next_edge++];
      if (is_on_path[to]) {
        std::vector<int> circle;
        do {
          circle.push_back(path.back().first);
          path.pop_back();
        } while (circle.back() != to);
        return circle;
      }
      if (seen[to] || !is_marked[to]) continue;
      path.emplace_back(to, 0);
      seen[to] = is_on_path[to] = true;
    }
  }
  return {};
}

std::optional<int> WaitGraph::OnlyNodeOfAllCircles(const std::vector<int>& nodes, int end) const {
  constexpr int kTriesMax = 32;  // each takes out one that may be it, and all off another circle
  std::vector<bool> is_marked(num_nodes(), false);
  for (const int node : nodes) is_marked[node] = true;
  std::vector<int> possible = FindCircle(is_marked);
  std::erase_if(possible, [end](int node) { return node >= end; });
  std::optional<int> found;
  for (int tries = 0; !possible.empty(); ++tries) {
    if (tries == kTriesMax) return std::nullopt;
    const int node = possible.back();
    possible.pop_back();
    is_marked[node] = false;
    std::vector<int> left = FindCircle(is_marked);
    is_marked[node] = true;
    if (left.empty()) {
      if (found) return std::nullopt;
      found = node;
      continue;
    }
    std::sort(left.begin(), left.end());
    std::erase_if(possible,
                  [&](int other) { return !std::binary_search(left.begin(), left.end(), other); });
  }
  return found;
}

std::vector<int> WaitGraph::PathTo(int from, const std::vector<int>& targets) const {
  std::vector<bool> is_target(num_nodes(), false);
  for (const int target : targets) is_target[target] = true;
  std::vector<int> came_from(num_nodes(), kNone);
  std::vector<bool> seen(num_nodes(), false);
  std::deque<int> to_visit = {from};
  seen[from] = true;
  while (!to_visit.empty()) {
    const int node = to_visit.front();
    to_visit.pop_front();
    if (is_target[node]) {
      std::vector<int> path;
      for (int at = node; at != kNone; at = came_from[at]) path.push_back(at);
      std::reverse(path.begin(), path.end());
      return path;
    }
    for (const int to : out_[node]) {
      if (seen[to]) continue;
      seen[to] = true;
      came_from[to] = node;
      to_visit.push_back(to);
    }
  }
  return {};
}

}  // namespace muster::hangs
