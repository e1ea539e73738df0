#include "rendezvous/core/directive_choice.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/core/membership_policy.h"
#include "rendezvous/core/network_split.h"
#include "rendezvous/core/round_decision.h"
#include "rendezvous/core/stop_step.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {
namespace {

// A node whose workers may be alive although the round goes on without it, or has ended.
bool IsBehind(const NodeState& node) {
  return node.report.phase != AgentPhase::kJoining || node.report.round < node.told;
}

StopRound StopLeftover(const JobState& state, const NodeState& node) {
  const bool was_told = node.report.phase == AgentPhase::kJoining;
  const bool ends = state.phase == JobPhase::kEnding;
  return {.round = was_told ? node.told : node.report.round,
          .cause = ends ? StopCause::kJobFailed : StopCause::kMembershipChange,
          .reason = absl::StrCat("the job went on without ", node.report.node.name,
                                 ", which was silent for too long"),
          .peer_lost = true,
          .exit_code = ends ? state.outcome->exit_code : 0};
}

DirectiveBody RunOrFinish(const JobState& state, const NodeState& node) {
  if (node.report.phase == AgentPhase::kSucceeded) {
    return Wait{absl::StrCat("finished; waiting for the others (", state.succeeded.size(), " of ",
                             state.members.size(), " nodes have finished)")};
  }
  // A node that has not heard of its round hears of that first.
  if (state.stop_step && node.report.round == state.round) {
    return StopAt{state.round, state.stop_step->step, state.stop_step->reason};
  }
  RunRound run{.assignment = state.assignments.at(node.incarnation)};
  const bool is_first = run.assignment.node_rank == NodeRank(0);
  if (node.report.round < state.round) {
    run.assignment.peers = is_first ? state.peers_for_node_0 : state.peers;
  }
  return run;
}

// `apart` are the members that the node does not reach.
Wait WaitApart(const JobState& state, const std::string& name,
               const std::vector<Incarnation>& apart) {
  std::vector<std::string> names;
  for (const Incarnation member : apart) {
    if (static_cast<int>(names.size()) == kMaxMissingNamed) break;
    names.push_back(state.nodes.at(member).report.node.name);
  }
  return Wait{absl::StrCat(name, " and ", NamesInWords(names, static_cast<int>(apart.size())),
                           " do not reach each other (--network=require); ", name, " is a spare")};
}

// What a node waits for while a place is free; none if the round does not grow.
std::optional<Wait> WaitForGrowth(const JobState& state, const std::string& name, MonoTime now) {
  if (state.settings->scale_up == ScaleUp::kNever) {
    return Wait{absl::StrCat(
        name, " is a spare: with --scale_up=never no running round ends for a node that comes")};
  }
  if (state.settings->scale_up == ScaleUp::kCheckpoint) {
    return Wait{absl::StrCat("a place is free; the running round ends for ", name,
                             " after the next checkpoint that its program commits "
                             "(--scale_up=checkpoint)")};
  }
  const std::optional<MonoTime> growth = GrowthTime(state);
  if (!growth) return std::nullopt;
  return Wait{absl::StrCat("a place is free; the running round ends for ", name, " in ",
                           InWords(*growth - now))};
}

Wait WaitWhileRunning(const JobState& state, const NodeState& node, MonoTime now) {
  if (!state.succeeded.empty()) return Wait{"the job is finishing; no node joins any more"};
  const std::string& name = node.report.node.name;
  const int max_nodes = state.settings->max_nodes;
  if (state.stop_step) {
    return Wait{
        absl::StrCat(state.stop_step->ends_job ? "the job" : "the running round",
                     " stops after a step that all its ranks agree on: ", state.stop_step->reason)};
  }
  if (const auto held = state.histories.find(name); held != state.histories.end()) {
    if (IsHeldBack(state, name, now)) {
      return Wait{absl::StrCat(name, " came and went ", held->second.changes,
                               " times and is held back so that the others make progress, for ",
                               InWords(held->second.held_until - now))};
    }
  }
  if (const std::vector<Incarnation> apart = MembersApartFrom(state, node); !apart.empty()) {
    return WaitApart(state, name, apart);
  }
  if (static_cast<int>(state.members.size()) < max_nodes) {
    if (const std::optional<Wait> wait = WaitForGrowth(state, name, now)) return *wait;
  }
  const std::string places = max_nodes == 1 ? std::string("the only place is taken")
                                            : absl::StrCat("all ", max_nodes, " places are taken");
  return Wait{absl::StrCat(places, "; ", name, " is a spare")};
}

}  // namespace

DirectiveBody DecideDirective(const JobState& state, const NodeState& node, MonoTime now) {
  if (state.phase == JobPhase::kEnded) return EndJob{*state.outcome};
  if (state.in_round.contains(node.incarnation)) {
    if (state.phase == JobPhase::kRunning) return RunOrFinish(state, node);
    return *state.stop;
  }
  if (state.drained.contains(node.incarnation)) return EndOfDrained(state, node.incarnation);
  const bool waits_for_end =
      state.phase == JobPhase::kEnding && IsLiveMember(state, node.incarnation);
  if (IsBehind(node) && !waits_for_end) return StopLeftover(state, node);
  switch (state.phase) {
    case JobPhase::kForming:
      return Wait{DecideRound(state, now).reason};
    case JobPhase::kRunning:
      return WaitWhileRunning(state, node, now);
    default:
      return Wait{absl::StrCat("the job is ending: ", state.outcome->reason)};
  }
}

}  // namespace muster::rendezvous
