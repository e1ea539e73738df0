// A directed graph of who waits for whom, and where all waiting ends.
//
// Pure. Cost: nodes and edges, linear; no recursion.
// Source: Tarjan, "Depth-first search and linear graph algorithms", 1972.
#pragma once

#include <optional>
#include <utility>
#include <vector>

namespace muster::hangs {

class WaitGraph {
 public:
  explicit WaitGraph(int num_nodes) : out_(num_nodes) {}

  void AddEdge(int from, int to) { out_[from].push_back(to); }
  int num_nodes() const { return static_cast<int>(out_.size()); }
  const std::vector<int>& edges_of(int node) const { return out_[node]; }

  // The sets of nodes that reach each other and nothing else, each sorted: a node that waits for
  // nothing, or a circle that nobody leaves. Nodes without any edge are none.
  std::vector<std::vector<int>> Ends() const;

  // One entry per node: whether one of `targets` can be reached from it (a target from itself).
  std::vector<bool> Reach(const std::vector<int>& targets) const;

  // The node below `end` that all circles among `nodes` go through, where there is exactly one and
  // a few tries find it.
  std::optional<int> OnlyNodeOfAllCircles(const std::vector<int>& nodes, int end) const;

  // Nodes from `from` to the nearest of `targets`, both included; empty if there is no way.
  std::vector<int> PathTo(int from, const std::vector<int>& targets) const;

 private:
  // The nodes of some circle among those that are marked; empty: there is none.
  std::vector<int> FindCircle(const std::vector<bool>& is_marked) const;

  std::vector<std::vector<int>> out_;
};

}  // namespace muster::hangs
