#include "rendezvous/core/round_restore.h"

#include <algorithm>
#include <utility>

#include "rendezvous/core/membership_policy.h"
#include "rendezvous/core/round_decision.h"
#include "rendezvous/core/stop_step.h"

namespace muster::rendezvous {
namespace {

// One transaction never records more rounds of a job.
constexpr int kMaxRoundsLost = 99;

// The report of a member that is taken to run the round; whatever it says next is newer.
AgentReport PresumedReport(const JobRecord& record, const Assignment& assignment,
                           const NodeDescription& description) {
  return {.phase = AgentPhase::kRunning,
          .round = record.round,
          .instance = assignment.instance,
          .num_nodes = assignment.num_nodes,
          .past = {.attempts = record.attempts, .restarts_used = record.restarts_used},
          .node = description,
          .settings = *record.settings};
}

void RestoreMember(JobState& state, Incarnation member, MonoTime lease_expires, MonoTime now) {
  NodeState& node = state.nodes[member];
  node.incarnation = member;
  node.report = PresumedReport(state, state.assignments.at(member), state.descriptions.at(member));
  node.first_seen = now;
  node.lease_expires = lease_expires;
  node.join_order = state.next_join_order++;
  node.connected = false;
  node.told = state.round;
  state.leases.insert({lease_expires, member});
  if (state.settings->is_static)
    state.ranks.claims[*node.report.node.node_rank] = {.holder = member};
}

}  // namespace

void SkipLostRounds(RoundRecord& record) {
  const Round next = std::max(record.round.Next(), record.first_unused);
  record.first_unused = Round(next.value() + kMaxRoundsLost);
}

JobState RestoreState(JobRecord record, const LeaseSettings& settings, MonoTime now) {
  JobState state;
  static_cast<JobRecord&>(state) = std::move(record);
  const LeaseSettings lease = LeaseOf(settings, static_cast<int>(state.members.size()));
  const MonoTime lease_expires = now + std::max(lease.duration, kReattachTime) + lease.margin;
  if (state.settings && state.settings->is_static) {
    for (int rank = 0; rank < state.settings->max_nodes; ++rank) state.ranks.missing.insert(rank);
  }
  for (const Incarnation member : state.members) {
    if (state.lost.contains(member)) continue;
    RestoreMember(state, member, lease_expires, now);
    if (state.phase != JobPhase::kEnded) state.in_round.insert(member);
  }
  state.last_heard = state.running_since = state.forming_since = state.ended_at = now;
  state.stop_asked_at = now;
  state.not_before = now + PauseAfter(state.quick_ends);
  if (state.stop) state.forming_reason = state.stop->reason;
  if (state.settings) {
    state.ending_deadline = now + state.settings->shutdown_timeout + kStopSlack;
  }
  if (state.stop_step) NoteFloorsOfFinished(state);
  if (!state.outcome) return state;
  // The failures keep their order, before any that still comes in: the root cause stays what it
  // was.
  MonoTime at = now - absl::Hours(1);
  for (const WorkerFailure& failure : state.outcome->failures) {
    state.failures.push_back({at, failure});
    at = at + absl::Microseconds(1);
  }
  return state;
}

RecordMark MarkOf(const JobRecord& record) {
  return {.phase = record.phase,
          .round = record.round,
          .restarts_used = record.restarts_used,
          .membership_changes = record.membership_changes,
          .committed_step = record.committed_step,
          .restarts_without_commit = record.restarts_without_commit,
          .num_lost = record.lost.size(),
          .stop_step = record.stop_step ? std::optional(record.stop_step->step) : std::nullopt,
          .stop_ends_job = record.stop_step && record.stop_step->ends_job,
          .num_drained = record.drained.size()};
}

}  // namespace muster::rendezvous
