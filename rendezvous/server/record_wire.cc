#include "rendezvous/server/record_wire.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/io/wire_check.h"
#include "proto/record.pb.h"
#include "rendezvous/core/admission.h"
#include "rendezvous/link/parts_wire.h"

namespace muster::rendezvous {
namespace {

constexpr std::pair<JobPhase, proto::JobPhase> kPhases[] = {
    {JobPhase::kForming, proto::JOB_PHASE_FORMING},
    {JobPhase::kRunning, proto::JOB_PHASE_RUNNING},
    {JobPhase::kEnding, proto::JOB_PHASE_ENDING},
    {JobPhase::kEnded, proto::JOB_PHASE_ENDED},
};

proto::JobPhase EncodePhase(JobPhase phase) {
  for (const auto& [ours, theirs] : kPhases) {
    if (ours == phase) return theirs;
  }
  return proto::JOB_PHASE_UNSPECIFIED;
}

JobPhase DecodePhase(proto::JobPhase phase, WireCheck& check) {
  for (const auto& [ours, theirs] : kPhases) {
    if (theirs == phase) return ours;
  }
  check.Require(false, "phase", "is not known to this version of muster");
  return JobPhase::kForming;
}

void DecodeRound(const proto::RoundRecord& in, WireCheck& check, RoundRecord& out) {
  out.round = Round(Signed(check, "round", in.round()));
  out.rounds_completed = check.Count("rounds_completed", in.rounds_completed());
  if (!check.List("members", in.members_size(), kMaxNodes)) return;
  for (const proto::RoundRecord::Member& member : in.members()) {
    const Incarnation incarnation(member.incarnation());
    out.members.push_back(incarnation);
    out.descriptions[incarnation] = Decode(member.node(), check);
    out.assignments[incarnation] = Decode(member.assignment(), check);
  }
  if (!check.List("peers", in.peers_size(), kMaxPeersInAssignment)) return;
  std::vector<Peer> peers;
  for (const proto::Peer& peer : in.peers()) peers.push_back(Decode(peer, check));
  out.peers_for_node_0 = std::move(peers);
  out.peers = Brief(out.peers_for_node_0);
}

void DecodeHistories(const proto::ProgressRecord& in, MonoTime kept_at, WireCheck& check,
                     ProgressRecord& out) {
  if (!check.List("histories", in.histories_size(), static_cast<int>(kMaxNodeHistories))) return;
  for (const proto::ProgressRecord::History& history : in.histories()) {
    NodeHistory& to = out.histories[history.node_name()];
    to.changes = check.Count("history.changes", history.changes());
    to.last_change = kept_at - check.Duration("history.age", history.last_change_age_us());
    to.held_until = kept_at + check.Duration("history.held_for", history.held_for_us());
  }
}

void DecodeStopStep(const proto::ProgressRecord& in, WireCheck& check, ProgressRecord& out) {
  if (in.has_stop_step()) {
    const proto::ProgressRecord::StopStep& from = in.stop_step();
    out.stop_step = StopStep{.reason = Text(check, "stop_step.reason", from.reason()),
                             .ends_job = from.ends_job(),
                             .exit_code = from.exit_code(),
                             .step = Signed(check, "stop_step.step", from.step())};
  }
  if (!check.List("drained", in.drained_size(), static_cast<int>(kMaxDrainedNodes))) return;
  for (const proto::ProgressRecord::Drained& from : in.drained()) {
    out.drained[Incarnation(from.incarnation())] = {
        .reason = Text(check, "drained.reason", from.reason()), .exit_code = from.exit_code()};
  }
}

void DecodeProgress(const proto::ProgressRecord& in, MonoTime kept_at, WireCheck& check,
                    ProgressRecord& out) {
  if (in.has_settings()) out.settings = Decode(in.settings(), check);
  out.settings_from = Printable(check, "settings_from", in.settings_from());
  out.phase = DecodePhase(in.phase(), check);
  if (in.has_stop()) out.stop = Decode(in.stop(), check);
  if (!check.List("lost", in.lost_size(), kMaxNodes)) return;
  for (const proto::ProgressRecord::Lost& lost : in.lost()) {
    out.lost[Incarnation(lost.incarnation())] = Printable(check, "lost.name", lost.name());
  }
  if (!check.List("succeeded", in.succeeded_size(), kMaxNodes)) return;
  for (const uint64_t node : in.succeeded()) out.succeeded.insert(Incarnation(node));
  out.attempts = check.Count("attempts", in.attempts());
  out.restarts_used = check.Count("restarts_used", in.restarts_used());
  out.membership_changes = check.Count("membership_changes", in.membership_changes());
  out.hasty_changes = check.Count("hasty_changes", in.hasty_changes());
  out.quick_ends = check.Count("quick_ends", in.quick_ends());
  DecodeHistories(in, kept_at, check, out);
  out.committed_step = Signed(check, "committed_step", in.committed_step());
  out.restarts_without_commit =
      check.Count("restarts_without_commit", in.restarts_without_commit());
  if (in.has_outcome()) out.outcome = Decode(in.outcome(), check);
  DecodeStopStep(in, check, out);
}

// What the rest of the server takes for granted (round_restore.h, and R1 to R10 after it).
void CheckRecord(const JobRecord& record, WireCheck& check) {
  const bool has_members = record.round != kNoRound;
  check.Require(record.settings.has_value(), "settings", "are missing");
  check.Require(record.members.empty() != has_members, "members", "are not those of a round");
  check.Require(record.assignments.size() == record.members.size(), "members",
                "have an incarnation twice");
  const bool is_over = record.phase == JobPhase::kEnding || record.phase == JobPhase::kEnded;
  check.Require(!is_over || record.outcome.has_value(), "outcome", "is missing");
  const bool is_stopping = record.phase == JobPhase::kForming || record.phase == JobPhase::kEnding;
  check.Require(!is_stopping || !has_members || record.stop.has_value(), "stop", "is missing");
  const auto is_member = [&](Incarnation node) { return record.assignments.contains(node); };
  check.Require(std::all_of(record.succeeded.begin(), record.succeeded.end(), is_member),
                "succeeded", "names a node that is no member");
  for (const auto& [unused, node] : record.descriptions) {
    const bool has_rank = node.node_rank.has_value();
    check.Require(!record.settings || !record.settings->is_static || has_rank, "node_rank",
                  "is missing in a static job");
  }
}

}  // namespace

std::string EncodeRound(const RoundRecord& in) {
  proto::RoundRecord out;
  out.set_round(in.round.value());
  out.set_rounds_completed(in.rounds_completed);
  EncodedPeers no_peers;
  for (const Incarnation member : in.members) {
    proto::RoundRecord::Member* to = out.add_members();
    to->set_incarnation(member.value());
    Encode(in.descriptions.at(member), to->mutable_node());
    Encode(in.assignments.at(member), no_peers, to->mutable_assignment());
  }
  for (const Peer& peer : in.peers_for_node_0) Encode(peer, out.add_peers());
  return out.SerializeAsString();
}

std::string EncodeProgress(const ProgressRecord& in, MonoTime now) {
  proto::ProgressRecord out;
  if (in.settings) Encode(*in.settings, out.mutable_settings());
  out.set_settings_from(in.settings_from);
  out.set_phase(EncodePhase(in.phase));
  if (in.stop) Encode(*in.stop, out.mutable_stop());
  for (const auto& [node, name] : in.lost) {
    proto::ProgressRecord::Lost* to = out.add_lost();
    to->set_incarnation(node.value());
    to->set_name(name);
  }
  for (const Incarnation node : in.succeeded) out.add_succeeded(node.value());
  out.set_attempts(in.attempts);
  out.set_restarts_used(in.restarts_used);
  out.set_membership_changes(in.membership_changes);
  out.set_hasty_changes(in.hasty_changes);
  out.set_quick_ends(in.quick_ends);
  for (const auto& [name, history] : in.histories) {
    proto::ProgressRecord::History* to = out.add_histories();
    to->set_node_name(name);
    to->set_changes(history.changes);
    to->set_last_change_age_us(EncodeDuration(now - history.last_change));
    to->set_held_for_us(EncodeDuration(history.held_until - now));
  }
  out.set_committed_step(in.committed_step);
  out.set_restarts_without_commit(in.restarts_without_commit);
  if (in.outcome) Encode(*in.outcome, out.mutable_outcome());
  if (in.stop_step) {
    out.mutable_stop_step()->set_reason(in.stop_step->reason);
    out.mutable_stop_step()->set_ends_job(in.stop_step->ends_job);
    out.mutable_stop_step()->set_exit_code(in.stop_step->exit_code);
    out.mutable_stop_step()->set_step(in.stop_step->step);
  }
  for (const auto& [node, drained] : in.drained) {
    proto::ProgressRecord::Drained* to = out.add_drained();
    to->set_incarnation(node.value());
    to->set_reason(drained.reason);
    to->set_exit_code(drained.exit_code);
  }
  return out.SerializeAsString();
}

absl::StatusOr<JobRecord> DecodeRecord(const std::string& round, const std::string& progress,
                                       MonoTime kept_at) {
  proto::RoundRecord round_message;
  proto::ProgressRecord progress_message;
  if (!round_message.ParseFromString(round) || !progress_message.ParseFromString(progress)) {
    return absl::DataLossError("it cannot be parsed");
  }
  WireCheck check;
  JobRecord record;
  // A job that ended before its first round has none.
  if (!round.empty()) DecodeRound(round_message, check, record);
  DecodeProgress(progress_message, kept_at, check, record);
  CheckRecord(record, check);
  if (!check.status().ok()) return absl::DataLossError(check.status().message());
  return record;
}

}  // namespace muster::rendezvous
