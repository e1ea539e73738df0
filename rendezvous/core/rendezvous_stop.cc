// How a job or a node of it is stopped because somebody asks for it: the part of RendezvousCore
// around the stop step (stop_step.h).
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "proto/base/nearest_name.h"
#include "rendezvous/core/membership_policy.h"
#include "rendezvous/core/rendezvous_core.h"
#include "rendezvous/core/stop_step.h"
#include "rendezvous/core/waiting_list.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {
namespace {

constexpr int kMaxNodesNamed = 3;

std::string WithReason(std::string text, const std::string& reason) {
  return reason.empty() ? text : absl::StrCat(text, ": ", reason);
}

// "after one step ..., or": what a person may expect who has asked for a stop.
std::string HowItStops(const JobState& state, bool at_once) {
  const std::string patience = InWords(state.settings->shutdown_timeout);
  if (at_once) {
    return absl::StrCat("the workers are signalled now, and have ", patience,
                        " (--shutdown_timeout)");
  }
  if (state.stop_step->step != kStopStepOpen) {
    return absl::StrCat("every rank leaves after step ", state.stop_step->step);
  }
  return absl::StrCat(
      "every rank leaves after the same step; programs that do not ask whether to stop are "
      "signalled after ",
      patience, " (--shutdown_timeout)");
}

std::vector<std::string> NamesOf(const JobState& state) {
  std::vector<std::string> names;
  for (const auto& [node, known] : state.nodes) {
    if (!state.drained.contains(node)) names.push_back(known.report.node.name);
  }
  return names;
}

absl::Status NoSuchNode(const JobState& state, const std::string& name) {
  std::vector<std::string> names = NamesOf(state);
  const std::string meant = DidYouMean(name, names);
  const int count = static_cast<int>(names.size());
  if (count > kMaxNodesNamed) names.resize(kMaxNodesNamed);
  return absl::NotFoundError(
      absl::StrCat("the job has no node '", name, "'", meant,
                   count == 0 ? "" : absl::StrCat("; its nodes: ", NamesInWords(names, count))));
}

template <typename IsMeant>
std::string AddressesOf(const JobState& state, const IsMeant& is_meant) {
  std::vector<std::string> addresses;
  int count = 0;
  for (const auto& entry : state.nodes) {
    if (!is_meant(entry) || ++count > kMaxNodesNamed) continue;
    addresses.push_back(entry.second.report.node.address);
  }
  return NamesInWords(addresses, count);
}

}  // namespace

void RendezvousCore::On(const StopRequested& event, Turn& turn) {
  StopAnswer answer =
      event.request.node.empty() ? Stop(event.request, turn) : Drain(event.request, turn);
  turn.effects.push_back(SendAnswer{event.from, std::move(answer)});
}

StopAnswer RendezvousCore::Stop(const StopRequest& request, Turn& turn) {
  if (state_.outcome) {
    const bool has_ended = state_.phase == JobPhase::kEnded;
    return {.status = absl::FailedPreconditionError(
                absl::StrCat("the job ", has_ended ? "has ended" : "is ending",
                             " already: ", state_.outcome->reason))};
  }
  const bool was_running = state_.phase == JobPhase::kRunning;
  BeginStop({.reason = WithReason("stopped on request", request.reason)}, request.at_once, turn);
  if (!was_running) return {.text = "the job ends; no round of it was running"};
  return {.text = absl::StrCat("the job stops: ", HowItStops(state_, request.at_once))};
}

StopAnswer RendezvousCore::Drain(const StopRequest& request, Turn& turn) {
  if (state_.outcome) return Stop(request, turn);  // says that it is too late
  const auto is_named = [&](const auto& entry) {
    const NodeDescription& node = entry.second.report.node;
    return (node.name == request.node || node.address == request.node) &&
           !state_.drained.contains(entry.first);
  };
  const auto found = std::find_if(state_.nodes.begin(), state_.nodes.end(), is_named);
  if (found == state_.nodes.end()) return {.status = NoSuchNode(state_, request.node)};
  if (std::count_if(found, state_.nodes.end(), is_named) > 1) {
    return {.status = absl::FailedPreconditionError(
                absl::StrCat("several nodes of the job are called '", request.node,
                             "'; give the address of one: ", AddressesOf(state_, is_named)))};
  }
  NodeState& node = found->second;
  const std::string name = node.report.node.name;
  if (state_.settings->is_static) {
    return {.status = absl::FailedPreconditionError(
                absl::StrCat("the job is static and cannot go on without ", name,
                             "; `muster stop` ends it after a step that all its ranks agree on"))};
  }
  if (node.incarnation == options_.host) {
    return {
        .status = absl::FailedPreconditionError(absl::StrCat(
            name,
            " hosts the rendezvous, and the job ends with it; use `muster stop`, or run musterd "
            "for a rendezvous that no node hosts"))};
  }
  const bool is_member =
      state_.phase == JobPhase::kRunning && state_.in_round.contains(found->first);
  DrainNode(node,
            {.reason = WithReason(absl::StrCat(name, " was drained on request"), request.reason),
             .exit_code = state_.settings->left_exit_code},
            request.at_once, turn);
  const std::string how = is_member
                              ? absl::StrCat(" is drained: ", HowItStops(state_, request.at_once))
                              : std::string(" leaves the job; it runs no round now");
  return {.text = absl::StrCat(name, how, WaitWithoutDrained(state_))};
}

// Their ranks hang, and so do the others: no step is agreed on, and nobody is waited for.
void RendezvousCore::On(const NodesAtFault& event, Turn& turn) {
  if (static_cast<int>(event.nodes.size()) > NodesToSpare(state_)) return;
  const bool all_may_leave = std::all_of(
      event.nodes.begin(), event.nodes.end(),
      [&](Incarnation node) { return node != options_.host && state_.in_round.contains(node); });
  if (event.nodes.empty() || !all_may_leave) return;
  for (const Incarnation id : event.nodes) {
    NodeState& node = state_.nodes.at(id);
    DrainNode(node,
              {.reason = absl::StrCat(node.report.node.name, " was replaced: ", event.why),
               .exit_code = state_.settings->left_exit_code},
              /*at_once=*/false, turn);
  }
  StopBySignals("its ranks can agree on no step", turn);
}

void RendezvousCore::DrainNode(NodeState& node, DrainedNode why, bool at_once, Turn& turn) {
  const Incarnation id = node.incarnation;
  if (state_.drained.contains(id)) return;
  if (state_.drained.size() == kMaxDrainedNodes) state_.drained.erase(state_.drained.begin());
  TakeOffWaitingList(state_, node);
  StopStep stop{.reason = why.reason, .ends_job = false, .exit_code = why.exit_code};
  const bool is_member = state_.in_round.contains(id);
  Note("node_drained", why.reason, turn);
  state_.drained[id] = std::move(why);
  turn.tell_all = true;
  if (!HasNodeThatStays(state_)) {
    stop.reason += ", and no other node is left (start the job again to go on)";
  }
  if (!HasNodeThatStays(state_) || (is_member && state_.phase == JobPhase::kRunning)) {
    BeginStop(stop, at_once, turn);
  } else if (is_member && state_.succeeded.contains(id)) {
    state_.in_round.erase(id);
  }
}

void RendezvousCore::BeginStop(StopStep asked, bool at_once, Turn& turn) {
  turn.tell_all = true;
  asked.ends_job = asked.ends_job || !HasNodeThatStays(state_);
  if (state_.phase != JobPhase::kRunning) {
    BeginEnding({.exit_code = asked.exit_code, .reason = asked.reason}, false, turn);
    return;
  }
  Note("stop_asked", asked.reason, turn);
  AskForStop(state_, std::move(asked), turn.now);
  if (at_once) StopBySignals("at once, as asked", turn);
}

// It has been told to end, and has some time left.
void RendezvousCore::ObeyWish(const NodeState& node, Turn& turn) {
  if (!node.report.stop_wish || state_.drained.contains(node.incarnation)) return;
  const StopWish& wish = *node.report.stop_wish;
  const int exit_code = wish.signal == 0 ? 0 : ExitCodeOfSignal(wish.signal);
  if (wish.drain_me && !state_.settings->is_static && node.incarnation != options_.host) {
    DrainNode(state_.nodes.at(node.incarnation), {.reason = wish.reason, .exit_code = exit_code},
              false, turn);
  } else if (!EndsByStop(state_)) {
    BeginStop({.reason = wish.reason, .exit_code = exit_code}, false, turn);
  }
}

void RendezvousCore::AdvanceStop(Turn& turn) {
  if (state_.phase != JobPhase::kRunning) return;
  if (rendezvous::NameStopStep(state_)) {
    turn.tell_all = true;
    Note("stop_step_named",
         absl::StrCat("every rank leaves after step ", state_.stop_step->step, " (",
                      state_.stop_step->reason, ")"),
         turn);
  }
  if (state_.succeeded.size() == state_.members.size()) {
    FinishRound(turn);
  } else if (turn.now >= StopPatienceEnds(state_)) {
    const std::string patience = InWords(state_.settings->shutdown_timeout);
    StopBySignals(absl::StrCat("not every program has asked whether to stop within ", patience),
                  turn);
  }
}

void RendezvousCore::StopBySignals(const std::string& why, Turn& turn) {
  if (EndsByStop(state_)) {
    BeginEnding(OutcomeOfStop(state_, why), false, turn);
  } else {
    EndRound(StopCause::kMembershipChange, absl::StrCat(state_.stop_step->reason, " (", why, ")"),
             false, turn);
  }
}

void RendezvousCore::FinishRound(Turn& turn) {
  const bool left_at_step = state_.stop_step && state_.stop_step->step != kStopStepOpen;
  if (left_at_step && !state_.stop_step->ends_job) {
    EndRound(StopCause::kMembershipChange, state_.stop_step->reason, false, turn);
    return;
  }
  state_.outcome =
      left_at_step ? OutcomeOfStop(state_, "")
                   : JobOutcome{.exit_code = 0, .reason = "every worker ended with exit code 0"};
  End(turn);
}

}  // namespace muster::rendezvous
