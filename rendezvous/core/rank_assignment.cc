#include "rendezvous/core/rank_assignment.h"

#include <algorithm>
#include <optional>

#include "absl/container/btree_map.h"
#include "absl/strings/ascii.h"
#include "proto/base/numeric_address.h"

namespace muster::rendezvous {
namespace {

using NodePointers = std::vector<const NodeState*>;

size_t DigitsEnd(absl::string_view text, size_t begin) {
  while (begin < text.size() && absl::ascii_isdigit(text[begin])) ++begin;
  return begin;
}

// Compares the runs of digits at the front of both, and removes them. Leading zeros do not count.
int CompareNumbers(absl::string_view& a, absl::string_view& b) {
  const auto take = [](absl::string_view& text) {
    const size_t end = DigitsEnd(text, 0);
    absl::string_view digits = text.substr(0, end);
    text.remove_prefix(end);
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
    return digits;
  };
  const absl::string_view x = take(a);
  const absl::string_view y = take(b);
  if (x.size() != y.size()) return x.size() < y.size() ? -1 : 1;
  return x.compare(y);
}

void SortNewcomers(NodePointers& nodes) {
  const bool are_numbered = std::all_of(nodes.begin(), nodes.end(), [](const NodeState* node) {
    return node->report.node.node_rank.has_value();
  });
  std::sort(nodes.begin(), nodes.end(), [are_numbered](const NodeState* a, const NodeState* b) {
    const NodeDescription& x = a->report.node;
    const NodeDescription& y = b->report.node;
    if (are_numbered && x.node_rank != y.node_rank) return *x.node_rank < *y.node_rank;
    if (x.name != y.name) return NaturalLess(x.name, y.name);
    return a->join_order < b->join_order;
  });
}

std::vector<Incarnation> OrderByNodeRank(NodePointers nodes) {
  std::sort(nodes.begin(), nodes.end(), [](const NodeState* a, const NodeState* b) {
    return a->report.node.node_rank < b->report.node.node_rank;
  });
  std::vector<Incarnation> order;
  for (const NodeState* node : nodes) order.push_back(node->incarnation);
  return order;
}

Assignment AssignNode(const NodeDescription& node, int node_rank, int first_rank) {
  Assignment a;
  a.node_rank = NodeRank(node_rank);
  a.first_rank = Rank(first_rank);
  a.local_world_size = node.local_world_size;
  return a;
}

// The address of a member that is no loopback; empty: all are on one machine.
std::string AddressElsewhere(absl::Span<const NodeState* const> members) {
  for (const NodeState* member : members) {
    const std::string& address = member->report.node.address;
    if (!IsLoopbackAddress(address)) return address;
  }
  return "";
}

// A member that met the server of its own machine on loopback is reached by one at `elsewhere` at
// the nearest of its other addresses.
std::string AddressFor(const std::string& elsewhere, const NodeDescription& node) {
  const std::vector<std::string>& others = node.other_addresses;
  if (elsewhere.empty() || others.empty() || !IsLoopbackAddress(node.address)) return node.address;
  return *std::max_element(
      others.begin(), others.end(), [&](const std::string& a, const std::string& b) {
        return CommonPrefixLength(a, elsewhere) < CommonPrefixLength(b, elsewhere);
      });
}

}  // namespace

bool NaturalLess(absl::string_view a, absl::string_view b) {
  absl::string_view x = a;
  absl::string_view y = b;
  while (!x.empty() && !y.empty()) {
    if (absl::ascii_isdigit(x[0]) && absl::ascii_isdigit(y[0])) {
      const int order = CompareNumbers(x, y);
      if (order != 0) return order < 0;
      continue;
    }
    if (x[0] != y[0]) return static_cast<unsigned char>(x[0]) < static_cast<unsigned char>(y[0]);
    x.remove_prefix(1);
    y.remove_prefix(1);
  }
  if (x.empty() != y.empty()) return x.empty();
  return a < b;
}

std::vector<Incarnation> OrderNodes(absl::Span<const Incarnation> previous,
                                    absl::Span<const NodeState* const> joined, bool is_static) {
  if (is_static) return OrderByNodeRank(NodePointers(joined.begin(), joined.end()));
  absl::btree_map<Incarnation, size_t> old_place;
  for (size_t i = 0; i < previous.size(); ++i) old_place[previous[i]] = i;
  std::vector<std::optional<Incarnation>> places(std::max(previous.size(), joined.size()));
  NodePointers newcomers;
  for (const NodeState* node : joined) {
    const auto found = old_place.find(node->incarnation);
    if (found == old_place.end()) {
      newcomers.push_back(node);
    } else {
      places[found->second] = node->incarnation;
    }
  }
  SortNewcomers(newcomers);
  auto next = newcomers.begin();
  std::vector<Incarnation> order;
  for (const std::optional<Incarnation>& place : places) {
    if (place) {
      order.push_back(*place);
    } else if (next != newcomers.end()) {
      order.push_back((*next++)->incarnation);
    }
  }
  return order;
}

std::vector<Assignment> AssignRanks(absl::Span<const NodeState* const> order, Round round,
                                    Instance instance) {
  std::vector<Assignment> result;
  std::vector<Peer> peers;
  absl::btree_map<absl::string_view, int> role_sizes;
  int world_size = 0;
  const std::string elsewhere = AddressElsewhere(order);
  for (const NodeState* state : order) {
    const NodeDescription& node = state->report.node;
    Assignment a = AssignNode(node, static_cast<int>(result.size()), world_size);
    a.role_first_rank = role_sizes[node.role];
    role_sizes[node.role] += node.local_world_size;
    world_size += node.local_world_size;
    result.push_back(std::move(a));
    if (order.size() <= kMaxPeersInAssignment) {
      peers.push_back({node.name, AddressFor(elsewhere, node), node.local_world_size,
                       node.worker_ports, node.other_addresses});
    }
  }
  const std::string master_address =
      order.empty() ? "" : AddressFor(elsewhere, order[0]->report.node);
  const Peers in_full(std::move(peers));
  const Peers in_brief = Brief(in_full);
  for (size_t i = 0; i < result.size(); ++i) {
    Assignment& a = result[i];
    a.round = round;
    a.instance = instance;
    a.num_nodes = static_cast<int>(order.size());
    a.world_size = world_size;
    a.role_world_size = role_sizes[order[i]->report.node.role];
    a.master_address = master_address;
    a.master_port = order[0]->report.node.store_port;
    a.peers = i == 0 ? in_full : in_brief;
  }
  return result;
}

}  // namespace muster::rendezvous
