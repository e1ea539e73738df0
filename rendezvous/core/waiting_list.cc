#include "rendezvous/core/waiting_list.h"

#include <optional>
#include <vector>

#include "rendezvous/core/membership_policy.h"

namespace muster::rendezvous {

void PutOnWaitingList(JobState& state, NodeState& node, MonoTime now) {
  const bool is_first = state.joined.empty();
  const bool was_ready = state.joined.contains(node.join_order);
  TakeOffWaitingList(state, node);
  node.wants_place = true;
  if (!node.connected) {
    state.away[{node.report.node.name, node.join_order}] = node.incarnation;
  } else if (IsHeldBack(state, node.report.node.name, now) &&
             MayBeHeldBack(state, node.report.node.name, now)) {
    node.held_until = state.histories.at(node.report.node.name).held_until;
    state.held_back[{node.held_until, node.join_order}] = node.incarnation;
  } else {
    state.joined[node.join_order] = node.incarnation;
    state.outside.survivors_joined += state.assignments.contains(node.incarnation) ? 1 : 0;
    if (state.settings->is_static) state.ranks.missing.erase(*node.report.node.node_rank);
    if (is_first && !was_ready) state.joined_since = now;
  }
}

void NoteCheck(JobState& state, const NodeState& node) {
  state.outside.checking.erase(node.incarnation);
  state.outside.unfit.erase(node.incarnation);
  const std::optional<CheckState>& check = node.report.check;
  if (!check) return;
  if (!check->failure.empty()) {
    state.outside.unfit.insert(node.incarnation);
  } else if (state.assignments.contains(node.incarnation)) {
    state.outside.checking.insert(node.incarnation);
  }
}

void TakeOffWaitingList(JobState& state, NodeState& node) {
  if (!node.wants_place) return;
  node.wants_place = false;
  if (state.joined.erase(node.join_order) > 0) {
    state.outside.survivors_joined -= state.assignments.contains(node.incarnation) ? 1 : 0;
    if (state.settings->is_static) state.ranks.missing.insert(*node.report.node.node_rank);
    return;
  }
  state.held_back.erase({node.held_until, node.join_order});
  state.away.erase({node.report.node.name, node.join_order});
}

void ReleaseHeldBack(JobState& state, MonoTime now) {
  std::vector<Incarnation> released;
  for (const auto& [until, node] : state.held_back) {
    if (until.first > now) break;
    released.push_back(node);
  }
  for (const Incarnation node : released) PutOnWaitingList(state, state.nodes.at(node), now);
  // Others have gone, and now more than half would be held.
  while (2 * state.held_back.size() > state.nodes.size()) {
    NodeState& least = state.nodes.at(state.held_back.begin()->second);
    state.histories.at(least.report.node.name).held_until = now;
    PutOnWaitingList(state, least, now);
  }
}

}  // namespace muster::rendezvous
