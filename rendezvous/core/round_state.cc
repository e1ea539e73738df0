#include "rendezvous/core/round_state.h"

#include <algorithm>

#include <array>

#include "absl/strings/str_cat.h"
#include "proto/base/phase_table.h"

namespace muster::rendezvous {
namespace {

constexpr std::array kTransitions = {
    Transition{JobPhase::kForming, JobPhase::kRunning},
    Transition{JobPhase::kForming, JobPhase::kEnding},
    Transition{JobPhase::kForming, JobPhase::kEnded},
    Transition{JobPhase::kRunning, JobPhase::kForming},
    Transition{JobPhase::kRunning, JobPhase::kEnding},
    Transition{JobPhase::kRunning, JobPhase::kEnded},
    Transition{JobPhase::kEnding, JobPhase::kEnded},
};

std::string CheckRanks(const JobState& state) {
  int next_rank = 0;
  for (size_t i = 0; i < state.members.size(); ++i) {
    const auto found = state.assignments.find(state.members[i]);
    if (found == state.assignments.end()) return absl::StrCat("R1: node rank ", i, " unassigned");
    const Assignment& a = found->second;
    if (a.node_rank.value() != static_cast<int>(i) || a.first_rank.value() != next_rank) {
      return absl::StrCat("R1: node rank ", i, " has ranks from ", a.first_rank.value(), ", not ",
                          next_rank);
    }
    if (a.round != state.round) return absl::StrCat("R2: assignment of round ", ToString(a.round));
    next_rank += a.local_world_size;
  }
  for (const auto& [unused, a] : state.assignments) {
    if (a.world_size != next_rank) return absl::StrCat("R1: world size ", a.world_size);
  }
  if (state.assignments.size() != state.members.size()) return "R6: a node holds two node ranks";
  return "";
}

std::string CheckRound(const JobState& state) {
  if (state.rounds_completed > state.round.value() + 1) {
    return absl::StrCat("R2: round ", ToString(state.round), " after ", state.rounds_completed);
  }
  if (state.round == kNoRound) return state.members.empty() ? "" : "R2: members of no round";
  const int members = static_cast<int>(state.members.size());
  if (members < state.settings->min_nodes || members > state.settings->max_nodes) {
    return absl::StrCat("R3: ", members, " members");
  }
  for (const Incarnation member : state.members) {
    if (!state.nodes.contains(member) && !state.lost.contains(member)) {
      return absl::StrCat("R5: member ", ToString(member), " is neither known nor lost");
    }
  }
  return CheckRanks(state);
}

std::string CheckNode(const JobState& state, const NodeState& node) {
  if (node.told > state.round) return absl::StrCat("R2: told of round ", ToString(node.told));
  if (node.left < node.told_before) {
    return absl::StrCat("R8: ", node.report.node.name, " left ", ToString(node.left), ", told ",
                        ToString(node.told_before), " and ", ToString(node.told));
  }
  const int lists =
      static_cast<int>(state.joined.contains(node.join_order)) +
      static_cast<int>(state.away.contains({node.report.node.name, node.join_order})) +
      static_cast<int>(state.held_back.contains({node.held_until, node.join_order}));
  if (lists != static_cast<int>(node.wants_place)) {
    return absl::StrCat("R9: ", node.report.node.name, " is on ", lists, " waiting lists");
  }
  if (node.wants_place && node.left < node.told) {
    return absl::StrCat("R8: ", node.report.node.name, " joined without having left round ",
                        ToString(node.told));
  }
  if (state.away.contains({node.report.node.name, node.join_order}) == node.connected &&
      node.wants_place) {
    return absl::StrCat("R9: ", node.report.node.name, " is away, but connected");
  }
  if (node.wants_place && state.drained.contains(node.incarnation)) {
    return absl::StrCat("R12: ", node.report.node.name, " is drained, and waits for a place");
  }
  if (node.wants_place && node.report.check) {
    return absl::StrCat("R12: ", node.report.node.name,
                        " has not passed its check, and waits for a place");
  }
  const std::optional<CheckState>& check = node.report.check;
  const bool is_unfit = check && !check->failure.empty();
  const bool is_checking = check && !is_unfit && state.assignments.contains(node.incarnation);
  if (state.outside.unfit.contains(node.incarnation) != is_unfit ||
      (state.outside.checking.contains(node.incarnation) && !is_checking)) {
    return absl::StrCat("R9: the check of ", node.report.node.name, " is not listed as it stands");
  }
  const bool runs = state.phase == JobPhase::kRunning && state.in_round.contains(node.incarnation);
  for (const Incarnation other : node.apart_from) {
    if (!runs || !state.in_round.contains(other)) continue;
    return absl::StrCat("R13: ", node.report.node.name, " runs with ", ToString(other),
                        ", which it does not reach");
  }
  if (!state.leases.contains({node.lease_expires, node.incarnation})) {
    return absl::StrCat("R9: no lease of ", node.report.node.name);
  }
  return "";
}

std::string CheckStopStep(const JobState& state) {
  if (!state.stop_step || state.stop_step->step == kStopStepOpen) return "";
  for (const auto& [node, floor] : state.stop_floors) {
    if (floor > state.stop_step->step) {
      return absl::StrCat("R11: node ", ToString(node), " is in step ", floor,
                          ", beyond the stop step ", state.stop_step->step);
    }
  }
  return "";
}

std::string CheckIndices(const JobState& state) {
  if (state.leases.size() != state.nodes.size()) return "R9: leases of unknown nodes";
  size_t waiting = 0;
  int survivors = 0;
  for (const auto& [incarnation, node] : state.nodes) {
    waiting += node.wants_place ? 1 : 0;
    if (!node.wants_place) continue;
    if (state.in_round.contains(incarnation))
      return "R9: a node is in the round and waits for the next";
    if (!state.joined.contains(node.join_order)) continue;
    survivors += state.assignments.contains(incarnation) ? 1 : 0;
  }
  if (waiting != state.joined.size() + state.away.size() + state.held_back.size()) {
    return "R9: an unknown node waits for a place";
  }
  if (survivors != state.outside.survivors_joined) return "R9: survivors miscounted";
  for (const absl::btree_set<Incarnation>& listed : {state.outside.checking, state.outside.unfit}) {
    for (const Incarnation node : listed) {
      if (!state.nodes.contains(node)) return "R9: the check of an unknown node is listed";
    }
  }
  if (state.settings && state.settings->is_static &&
      static_cast<int>(state.ranks.missing.size() + state.joined.size()) !=
          state.settings->max_nodes) {
    return "R9: missing ranks miscounted";
  }
  for (const Incarnation node : state.in_round) {
    if (!IsLiveMember(state, node)) return "R9: a node is in the round but not a member";
  }
  for (const Incarnation node : state.succeeded) {
    if (!state.assignments.contains(node)) return "R9: a node succeeded but is not a member";
  }
  for (const auto& [rank, claim] : state.ranks.claims) {
    const auto found = state.nodes.find(claim.holder);
    if (found == state.nodes.end() || found->second.report.node.node_rank != rank) {
      return absl::StrCat("R6: node rank ", rank, " is claimed by a node that does not hold it");
    }
  }
  return "";
}

}  // namespace

absl::string_view ToString(JobPhase phase) {
  switch (phase) {
    case JobPhase::kForming:
      return "forming";
    case JobPhase::kRunning:
      return "running";
    case JobPhase::kEnding:
      return "ending";
    case JobPhase::kEnded:
      return "ended";
  }
  return "?";
}

bool IsAllowed(JobPhase from, JobPhase to) { return IsInTable(kTransitions, from, to); }

std::string PhaseTable() { return PrintTable(kTransitions); }

LeaseSettings LeaseOf(const LeaseSettings& settings, const JobState& state) {
  const uint64_t most = state.settings ? static_cast<uint64_t>(state.settings->max_nodes) : 1;
  return LeaseOf(settings, static_cast<int>(std::min(state.next_join_order, most)));
}

bool IsLiveMember(const JobState& state, Incarnation node) {
  return state.assignments.contains(node) && !state.lost.contains(node);
}

std::string CheckInvariants(const JobState& state) {
  if (std::string broken = CheckRound(state); !broken.empty()) return broken;
  if (state.settings && state.restarts_used > state.settings->max_restarts) {
    return absl::StrCat("R4: ", state.restarts_used, " restarts used");
  }
  for (const auto& [unused, a] : state.assignments) {
    if (a.restart_count + 1 != state.attempts) return "R10: an attempt that is not the newest";
  }
  if (state.phase == JobPhase::kEnded && (!state.outcome || !state.in_round.empty())) {
    return "R7: ended without an outcome, or with members in the round";
  }
  if (state.former.size() > kMaxFormerNodes) return "R9: too many former nodes";
  for (const auto& [unused, node] : state.nodes) {
    if (std::string broken = CheckNode(state, node); !broken.empty()) return broken;
  }
  if (std::string broken = CheckStopStep(state); !broken.empty()) return broken;
  return CheckIndices(state);
}

}  // namespace muster::rendezvous
