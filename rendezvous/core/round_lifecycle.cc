// How rounds complete and end, and how the job ends: the part of RendezvousCore that follows from
// state and time.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "rendezvous/core/job_outcome.h"
#include "rendezvous/core/membership_policy.h"
#include "rendezvous/core/network_split.h"
#include "rendezvous/core/rank_assignment.h"
#include "rendezvous/core/rendezvous_core.h"
#include "rendezvous/core/round_decision.h"
#include "rendezvous/core/stop_step.h"
#include "rendezvous/core/waiting_list.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {
namespace {

constexpr absl::Duration kQuick = absl::Seconds(10);

}  // namespace

void RendezvousCore::Advance(Turn& turn) {
  if (!state_.settings) return;
  ReleaseHeldBack(state_, turn.now);
  GiveUpOnSilence(turn);
  if (state_.phase == JobPhase::kForming) {
    const bool is_enough = IsEnough(state_);
    if (!is_enough) state_.last_call_since.reset();
    if (is_enough && !state_.last_call_since) state_.last_call_since = turn.now;
    const RoundDecision decision = DecideRound(state_, turn.now);
    if (decision.verdict == RoundVerdict::kComplete) CompleteRound(decision.reason, turn);
    if (decision.verdict == RoundVerdict::kTimedOut) {
      BeginEnding({.exit_code = kExitNodesMissing, .reason = decision.reason}, false, turn);
    }
  }
  AdvanceStop(turn);
  Grow(turn);
  if (state_.phase == JobPhase::kEnding) {
    if (state_.outcome->root_cause) state_.outcome = OutcomeOfFailures(state_);
    if (state_.in_round.empty() || turn.now >= state_.ending_deadline) End(turn);
  }
  if (state_.phase == JobPhase::kEnded && !state_.retired) {
    const bool had_time = turn.now >= state_.ended_at + state_.settings->close_timeout;
    state_.retired = state_.nodes.empty() || had_time;
    if (state_.retired) turn.effects.push_back(Retire{});
  }
}

// Workers have been ended by their own agents by then, so that there is nothing to wait for.
void RendezvousCore::GiveUpOnSilence(Turn& turn) {
  const bool is_open = state_.phase == JobPhase::kForming || state_.phase == JobPhase::kRunning;
  const absl::Duration patience = state_.settings->orphan_timeout;
  if (!is_open || state_.nodes.empty() || turn.now - state_.last_heard < patience) return;
  state_.outcome =
      JobOutcome{.exit_code = kExitServerLost,
                 .reason = absl::StrCat("no agent of the job was heard for ", InWords(patience))};
  End(turn);
}

void RendezvousCore::Grow(Turn& turn) {
  const std::optional<MonoTime> when = GrowthTime(state_);
  if (!when || turn.now < *when) return;
  std::vector<std::string> names;
  const std::vector<Incarnation> newcomers = Newcomers(state_);
  for (const Incarnation node : newcomers) {
    if (static_cast<int>(names.size()) == kMaxMissingNamed) break;
    names.push_back(state_.nodes.at(node).report.node.name);
  }
  EndRound(StopCause::kMembershipChange,
           absl::StrCat(NamesInWords(names, static_cast<int>(newcomers.size())), " joined"), false,
           turn);
}

void RendezvousCore::CompleteRound(const std::string& reason, Turn& turn) {
  TakeMembers(turn.now);
  state_.round = std::max(state_.round.Next(), state_.first_unused);
  ++state_.rounds_completed;
  Assign(reason);
  ++state_.attempts;
  // The nodes left on the list, or being checked, are not members.
  state_.outside.survivors_joined = 0;
  state_.outside.checking.clear();
  state_.in_round = {state_.members.begin(), state_.members.end()};
  state_.lost.clear();
  state_.succeeded.clear();
  state_.failures.clear();
  state_.stop.reset();
  state_.stop_step.reset();
  state_.stop_floors.clear();
  state_.running_since = turn.now;
  state_.committed_at.reset();
  Enter(JobPhase::kRunning, turn);
  const int num_nodes = static_cast<int>(state_.members.size());
  Note("round_completed",
       absl::StrCat("round ", ToString(state_.round), " starts: ", num_nodes,
                    num_nodes == 1 ? " node, " : " nodes, ",
                    state_.assignments.begin()->second.world_size, " workers (", reason, ")"),
       turn);
}

void RendezvousCore::TakeMembers(MonoTime now) {
  std::vector<const NodeState*> nodes;
  const std::vector<Incarnation> chosen = ChooseMembers(state_);
  ForgetSplitAmong(state_, chosen);
  for (const Incarnation node : chosen) nodes.push_back(&state_.nodes.at(node));
  state_.members = OrderNodes(state_.members, nodes, state_.settings->is_static);
  for (const Incarnation member : state_.members) {
    NodeState& node = state_.nodes.at(member);
    TakeOffWaitingList(state_, node);
    RecordReturn(state_, node.report.node.name, now);
    const JobPast& past = node.report.past;
    state_.attempts = std::max(state_.attempts, past.attempts);
    state_.restarts_used =
        std::max(state_.restarts_used, std::min(past.restarts_used, state_.settings->max_restarts));
  }
}

void RendezvousCore::Assign(const std::string& reason) {
  std::vector<const NodeState*> nodes;
  for (const Incarnation node : state_.members) nodes.push_back(&state_.nodes.at(node));
  std::vector<Assignment> assignments = AssignRanks(nodes, state_.round, options_.instance);
  state_.assignments.clear();
  state_.descriptions.clear();
  state_.peers_for_node_0 = assignments.front().peers;
  state_.peers = Brief(state_.peers_for_node_0);
  for (size_t i = 0; i < assignments.size(); ++i) {
    NodeState& node = state_.nodes.at(state_.members[i]);
    node.told_before = std::exchange(node.told, state_.round);
    assignments[i].restart_count = state_.attempts;
    assignments[i].restarts_used = state_.restarts_used;
    assignments[i].reason = reason;
    assignments[i].peers = Peers();
    state_.assignments[node.incarnation] = std::move(assignments[i]);
    state_.descriptions[node.incarnation] = node.report.node;
  }
}

void RendezvousCore::RestartOrEnd(const std::string& reason, bool peer_lost, JobOutcome outcome,
                                  Turn& turn) {
  const int budget = state_.settings->max_restarts;
  if (EndsByStop(state_)) {
    BeginEnding(outcome.root_cause ? std::move(outcome) : OutcomeOfStop(state_, reason), peer_lost,
                turn);
    return;
  }
  if (state_.restarts_used == budget || IsRestartPointless(state_)) {
    BeginEnding(std::move(outcome), peer_lost, turn);
    return;
  }
  ++state_.restarts_used;
  ++state_.restarts_without_commit;
  EndRound(StopCause::kRestart,
           absl::StrCat("restart ", state_.restarts_used, " of ", budget, ": ", reason), peer_lost,
           turn);
}

void RendezvousCore::EndRound(StopCause cause, std::string reason, bool peer_lost, Turn& turn) {
  if (EndsByStop(state_)) {
    BeginEnding(OutcomeOfStop(state_, reason), peer_lost, turn);
    return;
  }
  const bool is_growth = cause == StopCause::kMembershipChange && !peer_lost;
  if (turn.now - state_.running_since >= kQuick) {
    state_.quick_ends = 0;
  } else if (!is_growth) {
    ++state_.quick_ends;
  }
  RecordRoundEnd(state_, cause, turn.now);
  state_.not_before = turn.now + PauseAfter(state_.quick_ends);
  state_.forming_since = turn.now;
  state_.last_call_since.reset();
  state_.forming_reason = reason;
  state_.stop =
      StopRound{.round = state_.round, .cause = cause, .reason = reason, .peer_lost = peer_lost};
  state_.stop_step.reset();
  for (const auto& [node, unused] : state_.drained) {
    if (state_.succeeded.contains(node)) state_.in_round.erase(node);
  }
  Enter(JobPhase::kForming, turn);
  // The loss of a node has been noted in the same turn.
  const bool is_said =
      std::any_of(turn.effects.begin(), turn.effects.end(), [&](const Effect& effect) {
        const auto* said = std::get_if<Announce>(&effect);
        return said != nullptr && said->reason == reason;
      });
  if (is_said) reason = absl::StrCat("round ", ToString(state_.round), " ends without it");
  Note("round_stopped", std::move(reason), turn);
}

void RendezvousCore::BeginEnding(JobOutcome outcome, bool peer_lost, Turn& turn) {
  state_.outcome = std::move(outcome);
  state_.stop = StopRound{.round = state_.round,
                          .cause = StopCause::kJobFailed,
                          .reason = state_.outcome->reason,
                          .peer_lost = peer_lost,
                          .exit_code = state_.outcome->exit_code};
  for (const Incarnation node : state_.succeeded) state_.in_round.erase(node);
  if (state_.in_round.empty()) {
    End(turn);
    return;
  }
  state_.ending_deadline = turn.now + state_.settings->shutdown_timeout + kStopSlack;
  Enter(JobPhase::kEnding, turn);
  Note("job_ending", state_.outcome->reason, turn);
}

void RendezvousCore::End(Turn& turn) {
  state_.in_round.clear();
  state_.ended_at = turn.now;
  Enter(JobPhase::kEnded, turn);
  Note("job_ended",
       absl::StrCat("exit code ", state_.outcome->exit_code, ": ", state_.outcome->reason), turn);
}

}  // namespace muster::rendezvous
