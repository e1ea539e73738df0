#include "rendezvous/core/network_split.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rendezvous/core/round_decision.h"

namespace muster::rendezvous {
namespace {

std::string PairInWords(const JobState& state, const FailedPair& pair) {
  const NodeDescription& from = state.nodes.at(state.members[pair.from]).report.node;
  const NodeDescription& to = state.nodes.at(state.members[pair.to]).report.node;
  return absl::StrCat(from.name, " (", from.address, ") does not reach ", to.name, " (", to.address,
                      "): ", ToString(pair.fault));
}

bool IsOfLiveMembers(const JobState& state, const FailedPair& pair) {
  const int count = static_cast<int>(state.members.size());
  return pair.from >= 0 && pair.from < count && pair.to >= 0 && pair.to < count &&
         pair.from != pair.to && state.nodes.contains(state.members[pair.from]) &&
         state.nodes.contains(state.members[pair.to]);
}

}  // namespace

NetworkSplit SplitMembers(JobState& state, const std::vector<FailedPair>& pairs) {
  std::vector<std::string> sentences;
  size_t num_pairs = 0;
  for (const FailedPair& pair : pairs) {
    if (!IsOfLiveMembers(state, pair)) continue;
    const Incarnation from = state.members[pair.from];
    const Incarnation to = state.members[pair.to];
    state.nodes.at(from).apart_from.insert(to);
    state.nodes.at(to).apart_from.insert(from);
    if (++num_pairs <= static_cast<size_t>(kMaxMissingNamed)) {
      sentences.push_back(PairInWords(state, pair));
    }
  }
  NetworkSplit split;
  if (num_pairs == 0) return split;
  std::vector<Incarnation> members;
  for (const Incarnation member : state.members) {
    if (state.nodes.contains(member)) members.push_back(member);
  }
  std::vector<Incarnation> at_hand = members;
  for (const auto& [unused, node] : state.joined) at_hand.push_back(node);
  const std::vector<Incarnation> together = ThoseTogether(state, std::move(at_hand));
  for (const Incarnation member : members) {
    const bool stays = std::find(together.begin(), together.end(), member) != together.end();
    if (!stays) split.leaving.push_back(state.nodes.at(member).report.node.name);
  }
  const size_t others = num_pairs - sentences.size();
  split.is_enough =
      !state.settings->is_static && static_cast<int>(together.size()) >= state.settings->min_nodes;
  split.reason = absl::StrCat(absl::StrJoin(sentences, "; "),
                              others == 0 ? "" : absl::StrCat("; and ", others, " pairs more"));
  return split;
}

std::vector<Incarnation> ThoseTogether(const JobState& state, std::vector<Incarnation> nodes) {
  const std::vector<Incarnation> asked = nodes;
  // Few nodes have any: the others are not looked at again.
  absl::btree_map<Incarnation, absl::btree_set<Incarnation>> apart;
  for (const Incarnation node : nodes) {
    const auto& others = state.nodes.at(node).apart_from;
    if (!others.empty()) apart[node] = others;
  }
  for (auto& [unused, others] : apart) {
    absl::erase_if(others, [&](Incarnation other) { return !apart.contains(other); });
  }
  while (true) {
    size_t most = 1;
    auto worst = nodes.end();
    for (auto node = nodes.begin(); node != nodes.end(); ++node) {
      const auto found = apart.find(*node);
      if (found == apart.end() || found->second.size() < most) continue;
      most = found->second.size();
      worst = node;
    }
    if (worst == nodes.end()) break;
    for (auto& [unused, others] : apart) others.erase(*worst);
    apart.erase(*worst);
    nodes.erase(worst);
  }
  if (nodes.size() == asked.size()) return nodes;
  // A node that was left out for the sake of others comes back if they were left out later.
  absl::btree_set<Incarnation> stay(nodes.begin(), nodes.end());
  for (const Incarnation node : asked) {
    const auto& others = state.nodes.at(node).apart_from;
    const bool reaches_all = std::none_of(others.begin(), others.end(),
                                          [&](Incarnation other) { return stay.contains(other); });
    if (reaches_all) stay.insert(node);
  }
  nodes = asked;
  std::erase_if(nodes, [&](Incarnation node) { return !stay.contains(node); });
  return nodes;
}

std::vector<Incarnation> MembersApartFrom(const JobState& state, const NodeState& node) {
  std::vector<Incarnation> members;
  for (const Incarnation other : node.apart_from) {
    if (state.assignments.contains(other) && state.nodes.contains(other)) members.push_back(other);
  }
  return members;
}

void ForgetSplitAmong(JobState& state, const std::vector<Incarnation>& nodes) {
  for (const Incarnation node : nodes) {
    absl::erase_if(state.nodes.at(node).apart_from, [&](Incarnation other) {
      return std::find(nodes.begin(), nodes.end(), other) != nodes.end();
    });
  }
}

}  // namespace muster::rendezvous
