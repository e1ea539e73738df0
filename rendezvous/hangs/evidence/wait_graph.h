// A directed graph of who waits for whom, and where all waiting ends.
//
// Pure. Cost: nodes and edges, linear; no recursion.
// Source: Tarjan, "Depth-first search and linear graph algorithms", 1972.
#pragma once

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

  // Nodes from `from` to the nearest of `targets`, both included; empty if there is no way.
  std::vector<int> PathTo(int from, const std::vector<int>& targets) const;

 private:
  std::vector<std::vector<int>> out_;
};

}  // namespace muster::hangs
