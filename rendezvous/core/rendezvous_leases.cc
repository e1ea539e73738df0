// The part of RendezvousCore that counts silence, and so decides which nodes are lost. Silence says
// something about a node only while others are heard; when none is, it is this server that is cut
// off, or all of them are stopped at once, and ending the job then would be wrong for all of them.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "rendezvous/core/job_outcome.h"
#include "rendezvous/core/membership_policy.h"
#include "rendezvous/core/rendezvous_core.h"
#include "rendezvous/core/waiting_list.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {

bool RendezvousCore::IsSilentAt(MonoTime when) const {
  const LeaseSettings lease = LeaseOf(options_.lease, state_);
  return when - state_.last_heard >
         kSilenceOfAll * std::max(lease.duration, 3 * lease.renew_interval);
}

void RendezvousCore::RenewLease(NodeState& node, MonoTime now) {
  state_.leases.erase({node.lease_expires, node.incarnation});
  const LeaseSettings lease = LeaseOf(options_.lease, state_);
  node.lease_expires = now + lease.duration + lease.margin;
  state_.leases.insert({node.lease_expires, node.incarnation});
}

void RendezvousCore::Hear(Turn& turn) {
  const bool was_silent = IsSilentAt(turn.now) && !state_.nodes.empty();
  const absl::Duration silence = turn.now - state_.last_heard;
  state_.last_heard = turn.now;
  if (!was_silent) return;
  const LeaseSettings lease = LeaseOf(options_.lease, state_);
  const absl::Duration fresh = lease.duration + lease.margin;
  for (auto& [unused, node] : state_.nodes) {
    if (node.free_renewals == kMaxFreeRenewals) continue;
    if (node.lease_expires > turn.now + fresh) continue;  // longer, after a restart of the server
    ++node.free_renewals;
    RenewLease(node, turn.now);
  }
  if (silence <= lease.duration) return;
  Note("silence_ended",
       absl::StrCat("no agent has reported for ", InWords(silence), "; extending every lease by ",
                    InWords(fresh)),
       turn);
}

// A lease that ends while nobody is heard does not end before somebody is.
MonoTime RendezvousCore::NextLeaseEnd() const {
  if (state_.leases.empty()) return MonoTime::InfiniteFuture();
  const MonoTime end = state_.leases.begin()->first;
  return IsSilentAt(end) ? MonoTime::InfiniteFuture() : end;
}

void RendezvousCore::ExpireLeases(std::optional<Incarnation> except, Turn& turn) {
  const LeaseSettings granted = LeaseOf(options_.lease, state_);
  const absl::Duration lease = granted.duration + granted.margin;
  std::vector<Incarnation> expired;
  for (const auto& [expires, node] : state_.leases) {
    if (expires > turn.now || IsSilentAt(expires)) break;
    if (node != except) expired.push_back(node);
  }
  for (const Incarnation node : expired) {
    const NodeState& state = state_.nodes.at(node);
    const absl::Duration silence = turn.now - state.lease_expires + lease;
    const std::string reason = absl::StrCat("lost ", state.report.node.name,
                                            " (no sign of life for ", InWords(silence), ")");
    if (state_.phase == JobPhase::kEnded) {
      Forget(node);
    } else {
      Lose(node, reason, std::nullopt, turn);
    }
  }
}

void RendezvousCore::On(const AgentEnded& event, Turn& turn) {
  const auto found = state_.nodes.find(event.agent);
  if (found == state_.nodes.end()) {
    const absl::Status unknown = absl::NotFoundError("the agent is not a node of the job any more");
    turn.effects.push_back(SendAnswer{event.from, {.status = unknown}});
    return;
  }
  turn.effects.push_back(SendAnswer{
      event.from, {.text = absl::StrCat(found->second.report.node.name, "'s lease ends")}});
  found->second.has_ended = true;
  if (!found->second.connected) LoseEnded(event.agent, turn);
}

void RendezvousCore::LoseEnded(Incarnation node, Turn& turn) {
  if (state_.phase == JobPhase::kEnded) {
    Forget(node);
    return;
  }
  Lose(node,
       absl::StrCat("lost ", state_.nodes.at(node).report.node.name,
                    " (its agent was killed, and its workers have ended)"),
       std::nullopt, turn);
}

void RendezvousCore::Supersede(const AgentReport& report, Turn& turn) {
  const NodeDescription& comer = report.node;
  std::vector<Incarnation> replaced;
  for (auto it = state_.away.lower_bound({comer.name, 0});
       it != state_.away.end() && it->first.first == comer.name; ++it) {
    const NodeDescription& old = state_.nodes.at(it->second).report.node;
    const bool is_same = old.address == comer.address && old.node_rank == comer.node_rank;
    if (is_same) replaced.push_back(it->second);
  }
  for (const Incarnation node : replaced) {
    Lose(node, absl::StrCat(comer.name, " was started again; its earlier start is gone"),
         std::nullopt, turn);
  }
}

void RendezvousCore::Lose(Incarnation node, const std::string& reason,
                          const std::optional<Departure>& departure, Turn& turn) {
  const bool is_missed = state_.phase == JobPhase::kRunning && IsLiveMember(state_, node) &&
                         !state_.succeeded.contains(node);
  const bool is_static = state_.settings->is_static;
  Note(departure ? "node_left" : "node_lost", reason, turn);
  if (is_missed && !is_static) {
    RecordChange(state_, state_.nodes.at(node).report.node.name, turn.now);
  }
  Forget(node);
  if (departure) HearFormer(node, turn.now);
  if (state_.phase == JobPhase::kEnding) return;
  const bool ends_job = departure && (departure->ends_job || is_static || state_.nodes.empty());
  if (ends_job) {
    BeginEnding(OutcomeOfDeparture(*departure, reason), true, turn);
  } else if (is_missed && is_static) {
    RestartOrEnd(reason, true, OutcomeOfLoss(state_, reason), turn);
  } else if (is_missed) {
    EndRound(StopCause::kMembershipChange, reason, true, turn);
  }
}

void RendezvousCore::HearFormer(Incarnation node, MonoTime now) {
  const LeaseSettings lease = LeaseOf(options_.lease, state_);
  state_.former.at(node).may_publish_until = now + lease.duration + lease.margin;
}

void RendezvousCore::Forget(Incarnation node) {
  const auto found = state_.nodes.find(node);
  NodeState& gone = found->second;
  if (state_.assignments.contains(node)) state_.lost[node] = gone.report.node.name;
  state_.in_round.erase(node);
  for (const Incarnation other : gone.apart_from) {
    if (state_.nodes.contains(other)) state_.nodes.at(other).apart_from.erase(node);
  }
  TakeOffWaitingList(state_, gone);
  state_.outside.checking.erase(node);
  state_.outside.unfit.erase(node);
  state_.leases.erase({gone.lease_expires, node});
  if (state_.settings->is_static) state_.ranks.claims.erase(*gone.report.node.node_rank);
  if (state_.former.size() == kMaxFormerNodes) state_.former.erase(state_.former.begin());
  state_.former[node] = {.sequence = gone.report.sequence, .told = gone.told};
  state_.nodes.erase(found);
}

}  // namespace muster::rendezvous
