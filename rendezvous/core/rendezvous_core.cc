#include "rendezvous/core/rendezvous_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/exit_codes.h"
#include "proto/base/status_macros.h"
#include "rendezvous/core/admission.h"
#include "rendezvous/core/checkpoint_commit.h"
#include "rendezvous/core/directive_choice.h"
#include "rendezvous/core/job_outcome.h"
#include "rendezvous/core/membership_policy.h"
#include "rendezvous/core/network_split.h"
#include "rendezvous/core/round_decision.h"
#include "rendezvous/core/round_restore.h"
#include "rendezvous/core/stop_step.h"
#include "rendezvous/core/waiting_list.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {
namespace {

bool IsFarewell(const AgentReport& report) {
  if (report.phase == AgentPhase::kLeaving) return true;
  return report.phase == AgentPhase::kJoining && !report.unkillable_pids.empty();
}

// It stops, or runs, a round of another instance: it has been told that what it knew is stale, and
// has not joined since. Its round has a number that this instance may have, too.
bool IsOfAnotherInstance(const AgentReport& report, Instance ours) {
  return report.round != kNoRound && report.instance != ours;
}

std::string FarewellReason(const AgentReport& report) {
  if (!report.unkillable_pids.empty()) {
    return absl::StrCat("could not end pid ", absl::StrJoin(report.unkillable_pids, ", "), " on ",
                        report.node.name);
  }
  if (report.departure && !report.departure->reason.empty()) return report.departure->reason;
  return absl::StrCat(report.node.name, " left");
}

}  // namespace

RendezvousCore::RendezvousCore(CoreOptions options) : options_(std::move(options)) {
  state_.young_until = options_.young_until;
  state_.ranks.names = options_.node_names;
}

RendezvousCore::RendezvousCore(CoreOptions options, JobRecord record, MonoTime now)
    : options_(options), state_(RestoreState(std::move(record), options.lease, now)) {
  state_.young_until = options_.young_until;
  state_.ranks.names = options_.node_names;
}

std::vector<Effect> RendezvousCore::Step(const Event& event, MonoTime now) {
  Turn turn{.now = now};
  const RecordMark before = MarkOf(state_);
  const auto* report = std::get_if<AgentReported>(&event);
  ExpireLeases(report == nullptr ? std::nullopt : std::optional(report->from), turn);
  std::visit([&](const auto& e) { On(e, turn); }, event);
  Advance(turn);
  const auto reporter = report == nullptr ? state_.nodes.end() : state_.nodes.find(report->from);
  if (turn.tell_all) {
    for (auto& [unused, node] : state_.nodes) {
      if (node.connected) Tell(node, turn);
    }
  } else if (reporter != state_.nodes.end()) {
    Tell(reporter->second, turn);
  }
  const RecordMark after = MarkOf(state_);
  if (after != before) {
    turn.effects.insert(turn.effects.begin(),
                        KeepRecord{.is_new_round = after.round != before.round});
  }
  return std::move(turn.effects);
}

MonoTime RendezvousCore::NextDeadline() const {
  MonoTime next = NextLeaseEnd();
  if (!state_.settings) return next;
  const MonoTime patience_ends = state_.nodes.empty()
                                     ? MonoTime::InfiniteFuture()
                                     : state_.last_heard + state_.settings->orphan_timeout;
  switch (state_.phase) {
    case JobPhase::kForming:
      next = Min(next, Min(patience_ends, NextRelease(state_)));
      return Min(next, DecideRound(state_, state_.forming_since).next_deadline);
    case JobPhase::kRunning:
      next = Min(next, Min(patience_ends, NextRelease(state_)));
      next = Min(next, StopPatienceEnds(state_));
      return Min(next, GrowthTime(state_).value_or(MonoTime::InfiniteFuture()));
    case JobPhase::kEnding:
      return Min(next, state_.ending_deadline);
    case JobPhase::kEnded:
      if (state_.retired) return MonoTime::InfiniteFuture();
      return Min(next, state_.ended_at + state_.settings->close_timeout);
  }
  return next;
}

std::string RendezvousCore::CheckInvariants() const { return rendezvous::CheckInvariants(state_); }

// --- Reports

void RendezvousCore::On(const AgentReported& event, Turn& turn) {
  const AgentReport& report = event.report;
  const auto former = state_.former.find(event.from);
  // What is late tells of no time after the newest.
  const bool is_news = former != state_.former.end() && report.sequence > former->second.sequence;
  if (is_news && former->second.may_publish_until) {
    HearFormer(event.from, turn.now);
    if (IsFarewell(report)) former->second.sequence = report.sequence;
  }
  if (std::optional<DirectiveBody> body = AnswerWithoutChange(event, turn.now)) {
    // Somebody is heard who may not come in yet: what others do not say counts from now on. Else
    // the lease that it waits for would end with nobody there to hear it.
    if (IsAwaitingPlace(event, turn.now)) {
      Hear(turn);
      NoteAwaiting(*report.node.node_rank, event.from, turn.now);
    }
    Send(event.from, report.sequence, *std::move(body), turn);
    return;
  }
  const auto known = state_.nodes.find(event.from);
  if (known != state_.nodes.end() && report.sequence <= known->second.report.sequence) return;
  if (IsFarewell(report)) {
    OnFarewell(event.from, report, turn);
    return;
  }
  if (known == state_.nodes.end()) Supersede(report, turn);
  Hear(turn);
  ApplyPhase(Remember(event.from, report, turn), turn);
}

std::optional<DirectiveBody> RendezvousCore::AnswerWithoutChange(const AgentReported& event,
                                                                 MonoTime now) const {
  const AgentReport& report = event.report;
  const auto known = state_.nodes.find(event.from);
  const bool is_known = known != state_.nodes.end();
  // What is late says nothing, not even that it is of an unknown round.
  if (is_known && report.sequence <= known->second.report.sequence) return std::nullopt;
  const auto former = state_.former.find(event.from);
  const bool is_former = former != state_.former.end();
  const bool is_late = is_former && !is_known && report.sequence <= former->second.sequence;
  if (!is_known && (is_late || IsFarewell(report))) {
    return AnswerFarewell(report);
  }
  if (is_known && IsFarewell(report)) return std::nullopt;
  if (!is_known && state_.phase == JobPhase::kEnded) {
    if (is_former || report.instance == options_.instance) return EndJob{*state_.outcome};
    return Refuse{absl::FailedPreconditionError(absl::StrCat(
        "the job has ended (", state_.outcome->reason, "); its run id can be used again in ",
        InWords(state_.ended_at + state_.settings->close_timeout - now)))};
  }
  if (IsOfAnotherInstance(report, options_.instance)) {
    if (is_known) return std::nullopt;
    return Wait{absl::StrCat("waiting for ", report.node.name, " to stop what it runs")};
  }
  if (!is_known && state_.drained.contains(event.from)) return EndOfDrained(state_, event.from);
  const absl::Status admission = CheckAdmission(state_, event.from, report, now);
  // A node that is not let in as yet gets no Wait: to an agent that was accepted a later refusal is
  // a stranger's.
  if (!admission.ok()) return Refuse{admission};
  return std::nullopt;
}

bool RendezvousCore::IsAwaitingPlace(const AgentReported& event, MonoTime now) const {
  return state_.settings && !state_.nodes.contains(event.from) &&
         event.report.phase == AgentPhase::kJoining &&
         absl::IsUnavailable(CheckAdmission(state_, event.from, event.report, now));
}

void RendezvousCore::NoteAwaiting(int node_rank, Incarnation from, MonoTime now) {
  auto& second_from = state_.ranks.claims.at(node_rank).second_from;
  const LeaseSettings lease = LeaseOf(options_.lease, state_);
  if (second_from.size() == kMaxFormerNodes) second_from.erase(second_from.begin());
  second_from.try_emplace(from, now + 2 * (lease.duration + lease.margin));
}

void RendezvousCore::OnFarewell(Incarnation from, const AgentReport& report, Turn& turn) {
  NodeState& node = state_.nodes.at(from);
  node.report.sequence = report.sequence;
  if (state_.phase == JobPhase::kEnded) {
    Send(from, report.sequence, EndJob{*state_.outcome}, turn);
    Forget(from);
    HearFormer(from, turn.now);
    return;
  }
  const Departure departure = report.departure.value_or(Departure{});
  Lose(from, FarewellReason(report), departure, turn);
  Send(from, report.sequence, AnswerFarewell(report), turn);
}

DirectiveBody RendezvousCore::AnswerFarewell(const AgentReport& report) const {
  if (state_.outcome) return EndJob{*state_.outcome};
  if (report.unkillable_pids.empty()) {
    return Wait{absl::StrCat(report.node.name, " has left the job")};
  }
  return Refuse{absl::FailedPreconditionError(
      absl::StrCat(FarewellReason(report), "; this node cannot take part in another round"))};
}

NodeState& RendezvousCore::Remember(Incarnation from, const AgentReport& report, Turn& turn) {
  if (!state_.settings) {
    state_.settings = report.settings;
    state_.settings_from = report.node.name;
    state_.forming_since = turn.now;
    if (report.settings.is_static) {
      for (int rank = 0; rank < report.settings.max_nodes; ++rank) {
        state_.ranks.missing.insert(state_.ranks.missing.end(), rank);
      }
    }
  }
  auto [place, is_new] = state_.nodes.try_emplace(from);
  NodeState& node = place->second;
  if (is_new) {
    node.incarnation = from;
    node.first_seen = turn.now;
    node.join_order = state_.next_join_order++;
    if (const auto former = state_.former.find(from); former != state_.former.end()) {
      node.told = former->second.told;
      state_.former.erase(former);
    }
    if (report.settings.is_static) {
      state_.ranks.claims[*report.node.node_rank] = {.holder = from};
    }
    Note("node_seen",
         absl::StrCat("node ", report.node.name, " (", report.node.address, ") is here"), turn);
  }
  // Indices know a node by these; an agent does not change them.
  const std::string name = is_new ? report.node.name : node.report.node.name;
  const std::optional<int> node_rank = is_new ? report.node.node_rank : node.report.node.node_rank;
  node.report = report;
  node.report.node.name = name;
  node.report.node.node_rank = node_rank;
  if (IsOfAnotherInstance(report, options_.instance)) node.report.round = kNoRound;
  if (!node.connected) {
    node.connected = true;
    if (node.wants_place) PutOnWaitingList(state_, node, turn.now);
  }
  node.free_renewals = 0;
  RenewLease(node, turn.now);
  return node;
}

void RendezvousCore::ApplyPhase(NodeState& node, Turn& turn) {
  NoteCheck(state_, node);
  if (node.report.phase == AgentPhase::kJoining) {
    ApplyJoining(node, turn);
    return;
  }
  TakeOffWaitingList(state_, node);
  if (IsLiveMember(state_, node.incarnation) && node.report.round == state_.round) {
    ApplyMemberPhase(node, turn);
  }
}

void RendezvousCore::ApplyJoining(NodeState& node, Turn& turn) {
  if (node.report.round < node.told) return;  // it has not heard of its round yet
  node.left = node.told;
  const std::string& name = node.report.node.name;
  const bool was_in_round = state_.in_round.erase(node.incarnation) > 0;
  const bool breaks_round = was_in_round && state_.phase == JobPhase::kRunning;
  if (breaks_round) RecordChange(state_, name, turn.now);
  if (node.report.check) {
    TakeOffWaitingList(state_, node);
  } else if (!state_.drained.contains(node.incarnation)) {
    PutOnWaitingList(state_, node, turn.now);
  }
  if (!breaks_round) return;
  EndRound(StopCause::kMembershipChange, absl::StrCat(name, " joined again by itself"), true, turn);
}

void RendezvousCore::ApplyMemberPhase(const NodeState& node, Turn& turn) {
  const Incarnation from = node.incarnation;
  const AgentPhase phase = node.report.phase;
  if (phase == AgentPhase::kFailed || !node.report.failures.empty()) {
    RecordFailures(state_, node, turn.now);
    if (state_.phase == JobPhase::kRunning && !state_.failures.empty()) {
      RestartOrEnd(InWords(state_.failures.front().failure), false, OutcomeOfFailures(state_),
                   turn);
    } else if (state_.phase == JobPhase::kForming && AsksForNoRestart(state_)) {
      BeginEnding(OutcomeOfFailures(state_), false, turn);
    }
  }
  if (state_.phase == JobPhase::kForming && phase == AgentPhase::kSucceeded &&
      state_.drained.contains(from)) {
    state_.in_round.erase(from);
  }
  const bool is_done = phase == AgentPhase::kStopped || phase == AgentPhase::kSucceeded;
  if (phase == AgentPhase::kSucceeded) state_.succeeded.insert(from);
  if (state_.phase == JobPhase::kRunning) {
    NoteStopFloor(state_, node);
    ObeyWish(node, turn);
  }
  if (state_.phase == JobPhase::kRunning) PartMembers(node.report.failed_pairs, turn);
  if (state_.phase == JobPhase::kEnding && is_done) state_.in_round.erase(from);
  if (state_.phase != JobPhase::kRunning || phase != AgentPhase::kStopped) return;
  RecordChange(state_, node.report.node.name, turn.now);
  EndRound(StopCause::kMembershipChange, absl::StrCat(node.report.node.name, " stopped by itself"),
           true, turn);
}

void RendezvousCore::PartMembers(const std::vector<FailedPair>& pairs, Turn& turn) {
  const NetworkSplit split = SplitMembers(state_, pairs);
  if (split.reason.empty()) return;
  const std::string why = absl::StrCat(" (--network=require): ", split.reason);
  if (!split.is_enough) {
    BeginEnding({.exit_code = kExitNodesMissing,
                 .reason = absl::StrCat("the nodes do not all reach each other", why)},
                false, turn);
    return;
  }
  for (const std::string& name : split.leaving) RecordChange(state_, name, turn.now);
  const int count = static_cast<int>(split.leaving.size());
  std::vector<std::string> named = split.leaving;
  named.resize(std::min(named.size(), static_cast<size_t>(kMaxMissingNamed)));
  EndRound(StopCause::kMembershipChange,
           absl::StrCat("the larger side of the network goes on without ",
                        NamesInWords(named, count), why),
           false, turn);
}

void RendezvousCore::On(const AgentDisconnected& event, Turn& turn) {
  const auto found = state_.nodes.find(event.from);
  if (found == state_.nodes.end()) return;
  NodeState& node = found->second;
  node.connected = false;
  if (node.wants_place) PutOnWaitingList(state_, node, turn.now);
  const bool is_over = state_.phase == JobPhase::kEnded || state_.drained.contains(event.from);
  if (is_over && node.told_end) {
    Forget(event.from);
  } else if (node.has_ended) {
    LoseEnded(event.from, turn);
  }
}

void RendezvousCore::On(const HostLeaving& event, Turn& turn) {
  if (state_.phase == JobPhase::kEnded || !state_.settings) return;
  // There is no time to hear how the members stop: the server goes with its host.
  if (!state_.outcome) {
    state_.outcome = OutcomeOfDeparture(
        event.departure, absl::StrCat(event.host_name, ", the host of the rendezvous, left: ",
                                      event.departure.reason));
  }
  End(turn);
}

std::string RendezvousCore::NameOf(Incarnation node) const {
  const auto here = state_.nodes.find(node);
  if (here != state_.nodes.end()) return here->second.report.node.name;
  const auto gone = state_.lost.find(node);
  return gone == state_.lost.end() ? "a node that has left" : gone->second;
}

void RendezvousCore::On(const CommitRequested& event, Turn& turn) {
  const absl::Status status = CheckCommit(state_, event, options_.term, turn.now);
  turn.effects.push_back(
      SendStoreReply{event.from, {.request_id = event.request_id, .status = status}});
  if (!status.ok()) return;
  state_.committed_at = turn.now;
  // An end that is decided stays what it is.
  if (state_.phase != JobPhase::kEnding) state_.restarts_without_commit = 0;
  const int64_t step = event.checkpoint.step;
  if (step <= state_.committed_step) return;
  state_.committed_step = step;
  Note("checkpoint_committed",
       absl::StrCat("the checkpoint of step ", step, " is committed by ", NameOf(event.from)),
       turn);
}

// --- Effects

void RendezvousCore::Enter(JobPhase phase, Turn& turn) {
  MUSTER_CHECK(IsAllowed(state_.phase, phase));
  state_.phase = phase;
  turn.tell_all = true;
}

void RendezvousCore::Note(std::string event, std::string reason, Turn& turn) const {
  turn.effects.push_back(Announce{std::move(event), std::move(reason), state_.round});
}

void RendezvousCore::Send(Incarnation to, uint64_t report_sequence, DirectiveBody body,
                          Turn& turn) const {
  Directive directive{.term = options_.term,
                      .instance = options_.instance,
                      .report_sequence = report_sequence,
                      .body = std::move(body)};
  turn.effects.push_back(SendDirective{to, std::move(directive)});
}

void RendezvousCore::Tell(NodeState& node, Turn& turn) const {
  DirectiveBody body = DecideDirective(state_, node, turn.now);
  if (std::holds_alternative<EndJob>(body)) node.told_end = true;
  Send(node.incarnation, node.report.sequence, std::move(body), turn);
}

// --- Transcripts

namespace {

struct EffectPrinter {
  std::string operator()(const SendDirective& e) const {
    return absl::StrCat("send ", ToString(e.to), " ", muster::ToString(e.directive.body));
  }
  std::string operator()(const SendStoreReply& e) const {
    return absl::StrCat("reply ", ToString(e.to), " ", e.reply.status.ToString());
  }
  std::string operator()(const SendAnswer& e) const {
    return absl::StrCat("answer ", ToString(e.to), " ",
                        e.answer.status.ok() ? e.answer.text : e.answer.status.ToString());
  }
  std::string operator()(const Announce& e) const {
    return absl::StrCat("announce ", e.event, " round=", ToString(e.round), " \"", e.reason, "\"");
  }
  std::string operator()(const Retire&) const { return "retire"; }
  std::string operator()(const KeepRecord& e) const {
    return e.is_new_round ? "keep round" : "keep progress";
  }
};

}  // namespace

std::string ToString(const Effect& effect) { return std::visit(EffectPrinter{}, effect); }

}  // namespace muster::rendezvous
