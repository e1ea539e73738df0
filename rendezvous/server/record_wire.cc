#include "rendezvous/server/record_wire.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/io/wire_fields.h"
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

// A map, which the record has as a list of entries: of two with one key the last counts.
template <typename P, typename Part, typename Map, typename Fields>
void MapField(Wire<P> wire, absl::string_view name, int size_max,
              const google::protobuf::RepeatedPtrField<Part>& (P::*get)() const,
              google::protobuf::RepeatedPtrField<Part>* (P::*mut)(), Map& map, Fields fields) {
  using Entry = std::pair<typename Map::key_type, typename Map::mapped_type>;
  if (!wire.decodes()) {
    for (Entry entry : map) fields(Wire<Part>((wire.out().*mut)()->Add()), entry);
  } else if (wire.check().List(name, (wire.in().*get)().size(), size_max)) {
    for (const Part& part : (wire.in().*get)()) {
      Entry entry;
      fields(Wire<Part>(part, wire.check()), entry);
      map[entry.first] = std::move(entry.second);
    }
  }
}

// Its description and assignment lie in maps.
void MemberFields(Wire<proto::RoundRecord::Member> wire, Incarnation& member, RoundRecord& record) {
  using P = proto::RoundRecord::Member;
  wire.Plain(&P::incarnation, &P::set_incarnation, member);
  if (wire.decodes()) {
    record.descriptions[member] = NodeDescription();
    record.assignments[member] = Assignment();
  }
  wire.Inner(&P::node, &P::mutable_node, record.descriptions.at(member), NodeFields);
  wire.Inner(&P::assignment, &P::mutable_assignment, record.assignments.at(member),
             AssignmentFields);
}

void RoundFields(Wire<proto::RoundRecord> wire, RoundRecord& record) {
  using P = proto::RoundRecord;
  wire.Number("round", kCountOrNone, &P::round, &P::set_round, record.round);
  wire.Number("rounds_completed", kCount, &P::rounds_completed, &P::set_rounds_completed,
              record.rounds_completed);
  wire.Number("first_unused", kCount, &P::first_unused, &P::set_first_unused, record.first_unused);
  wire.List("members", {kMaxNodes}, &P::members, &P::mutable_members, record.members,
            [&](Wire<P::Member> part, Incarnation& member) { MemberFields(part, member, record); });
  std::vector<Peer> peers = record.peers_for_node_0.list();
  wire.List("peers", {kMaxPeersInAssignment}, &P::peers, &P::mutable_peers, peers, PeerFields);
  if (!wire.decodes()) return;
  record.peers_for_node_0 = std::move(peers);
  record.peers = Brief(record.peers_for_node_0);
}

using Lost = std::pair<Incarnation, std::string>;
void LostFields(Wire<proto::ProgressRecord::Lost> wire, Lost& lost) {
  using P = proto::ProgressRecord::Lost;
  wire.Plain(&P::incarnation, &P::set_incarnation, lost.first);
  wire.Text("lost.name", kPrintable, &P::name, &P::mutable_name, lost.second);
}

using Drained = std::pair<Incarnation, DrainedNode>;
void DrainedFields(Wire<proto::ProgressRecord::Drained> wire, Drained& drained) {
  using P = proto::ProgressRecord::Drained;
  wire.Plain(&P::incarnation, &P::set_incarnation, drained.first);
  wire.Text("drained.reason", kText, &P::reason, &P::mutable_reason, drained.second.reason);
  wire.Plain(&P::exit_code, &P::set_exit_code, drained.second.exit_code);
}

using History = std::pair<std::string, NodeHistory>;
void HistoryFields(Wire<proto::ProgressRecord::History> wire, History& entry, MonoTime kept_at) {
  using P = proto::ProgressRecord::History;
  NodeHistory& history = entry.second;
  absl::Duration age = kept_at - history.last_change;
  absl::Duration held_for = history.held_until - kept_at;
  wire.Text("history.node_name", {}, &P::node_name, &P::mutable_node_name, entry.first);
  wire.Number("history.changes", kCount, &P::changes, &P::set_changes, history.changes);
  wire.Duration("history.age", &P::last_change_age_us, &P::set_last_change_age_us, age);
  wire.Duration("history.held_for", &P::held_for_us, &P::set_held_for_us, held_for);
  if (!wire.decodes()) return;
  history.last_change = kept_at - age;
  history.held_until = kept_at + held_for;
}

void StopStepFields(Wire<proto::ProgressRecord::StopStep> wire, StopStep& stop) {
  using P = proto::ProgressRecord::StopStep;
  wire.Text("stop_step.reason", kText, &P::reason, &P::mutable_reason, stop.reason);
  wire.Plain(&P::ends_job, &P::set_ends_job, stop.ends_job);
  wire.Plain(&P::exit_code, &P::set_exit_code, stop.exit_code);
  wire.Number("stop_step.step", kCountOrNone, &P::step, &P::set_step, stop.step);
}

void SucceededField(Wire<proto::ProgressRecord> wire, absl::btree_set<Incarnation>& succeeded) {
  if (!wire.decodes()) {
    for (const Incarnation node : succeeded) wire.out().add_succeeded(node.value());
  } else if (wire.check().List("succeeded", wire.in().succeeded_size(), kMaxNodes)) {
    for (const uint64_t node : wire.in().succeeded()) succeeded.insert(Incarnation(node));
  }
}

// `kept_at` is when the record was kept, by the clock of its instants.
void ProgressFields(Wire<proto::ProgressRecord> wire, ProgressRecord& record, MonoTime kept_at) {
  using P = proto::ProgressRecord;
  wire.Inner(&P::has_settings, &P::settings, &P::mutable_settings, record.settings, SettingsFields);
  wire.Text("settings_from", kPrintable, &P::settings_from, &P::mutable_settings_from,
            record.settings_from);
  wire.Choice("phase", kPhases, &P::phase, &P::set_phase, record.phase);
  wire.Inner(&P::has_stop, &P::stop, &P::mutable_stop, record.stop, StopRoundFields);
  MapField(wire, "lost", kMaxNodes, &P::lost, &P::mutable_lost, record.lost, LostFields);
  SucceededField(wire, record.succeeded);
  wire.Number("attempts", kCount, &P::attempts, &P::set_attempts, record.attempts);
  wire.Number("restarts_used", kCount, &P::restarts_used, &P::set_restarts_used,
              record.restarts_used);
  wire.Number("membership_changes", kCount, &P::membership_changes, &P::set_membership_changes,
              record.membership_changes);
  wire.Number("hasty_changes", kCount, &P::hasty_changes, &P::set_hasty_changes,
              record.hasty_changes);
  wire.Number("quick_ends", kCount, &P::quick_ends, &P::set_quick_ends, record.quick_ends);
  MapField(
      wire, "histories", kMaxNodeHistories, &P::histories, &P::mutable_histories, record.histories,
      [&](Wire<P::History> history, History& entry) { HistoryFields(history, entry, kept_at); });
  wire.Number("committed_step", kCountOrNone, &P::committed_step, &P::set_committed_step,
              record.committed_step);
  wire.Number("restarts_without_commit", kCount, &P::restarts_without_commit,
              &P::set_restarts_without_commit, record.restarts_without_commit);
  wire.Inner(&P::has_outcome, &P::outcome, &P::mutable_outcome, record.outcome, OutcomeFields);
  wire.Inner(&P::has_stop_step, &P::stop_step, &P::mutable_stop_step, record.stop_step,
             StopStepFields);
  MapField(wire, "drained", kMaxDrainedNodes, &P::drained, &P::mutable_drained, record.drained,
           DrainedFields);
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
                "succeeded", "names a node that is not a member");
  for (const auto& [unused, node] : record.descriptions) {
    const bool has_rank = node.node_rank.has_value();
    check.Require(!record.settings || !record.settings->is_static || has_rank, "node_rank",
                  "is missing in a static job");
  }
}

}  // namespace

std::string EncodeRound(const RoundRecord& in) {
  proto::RoundRecord out;
  EncodeFields(in, &out, RoundFields);
  return out.SerializeAsString();
}

std::string EncodeProgress(const ProgressRecord& in, MonoTime now) {
  proto::ProgressRecord out;
  EncodeFields(in, &out, [&](Wire<proto::ProgressRecord> wire, ProgressRecord& record) {
    ProgressFields(wire, record, now);
  });
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
  if (!round.empty()) RoundFields(Wire<proto::RoundRecord>(round_message, check), record);
  ProgressFields(Wire<proto::ProgressRecord>(progress_message, check), record, kept_at);
  CheckRecord(record, check);
  if (!check.status().ok()) return absl::DataLossError(check.status().message());
  return record;
}

}  // namespace muster::rendezvous
