// Nodes with a network between them that tests can cut: one network namespace each, joined by a
// bridge in a namespace of its own, where the rendezvous lives.
//
// Needs root and `ip` (iproute2).
#pragma once

#include <string>
#include <vector>

namespace muster::testing {

class NodeNetwork {
 public:
  // Whether this machine lets us make one; tests skip themselves where it does not.
  static bool IsPossible();

  // Each node has an interface on each of the networks: eth0, eth1.
  explicit NodeNetwork(int num_nodes, int num_networks = 1);
  ~NodeNetwork();
  NodeNetwork(const NodeNetwork&) = delete;
  NodeNetwork& operator=(const NodeNetwork&) = delete;

  // The address of node 0, in the bridge's namespace, or of one of the nodes 1..num_nodes.
  std::string AddressOf(int node, int network = 0) const;
  // `argv` as it runs on a node.
  std::vector<std::string> On(int node, const std::vector<std::string>& argv) const;
  // The namespace for nsenter(1), used where `ip netns exec` would hide /sys/fs/cgroup.
  std::string NamespaceOf(int node) const { return "/run/netns/" + NameOf(node); }

  // Frames to and from the node are dropped; its interface stays up, as behind a broken switch.
  void Cut(int node) const;
  void Heal(int node) const;
  // `ip` on a node, with these arguments.
  void Configure(int node, const std::string& arguments) const;
  // The node's /etc/hosts, for programs started by On.
  void SetHosts(int node, const std::string& text) const;
  // Packets of more than `bytes` are lost on the way to the node, without a word to their sender.
  void Narrow(int node, int network, int bytes) const;
  // The same between nodes `a` and `b` alone, which both still reach all others.
  void CutBetween(int a, int b) const;
  void HealBetween(int a, int b) const;

 private:
  std::string NameOf(int node) const;
  std::string LinkOf(int node, int network = 0) const;

  const int num_nodes_;
  const std::string prefix_;
};

}  // namespace muster::testing
