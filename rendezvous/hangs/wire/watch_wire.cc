#include "rendezvous/hangs/wire/watch_wire.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "proto/io/wire_fields.h"
#include "proto/watch.pb.h"
#include "rendezvous/hangs/evidence/incident_parts.h"

namespace muster::rendezvous {
namespace {

// --- Lists of ranks, operations, bounds

constexpr NumberBounds kRanks{0, kWatchedRanksMax};
constexpr NumberBounds kOneRankOrMore{1, kWatchedRanksMax};
constexpr TextBounds kWatchedText{kWatchedTextBytesMax, kWatchedTextBytesMax};
constexpr ListBounds kTexts{64, 64};
constexpr absl::Duration kMillis = absl::Milliseconds(1);
constexpr absl::Duration kMicros = absl::Microseconds(1);

using WireRuns = google::protobuf::RepeatedField<int32_t>;
void EncodeRuns(const std::vector<int>& ranks, WireRuns& out) {
  for (size_t begin = 0; begin < ranks.size() && out.size() < 2 * kRunsMax;) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    out.Add(ranks[begin]);
    out.Add(static_cast<int>(end - begin) - 1);
    begin = end;
  }
}

std::vector<int> TakeRuns(const WireRuns& in, absl::string_view name, WireCheck& check) {
  std::vector<int> out;
  check.Require(in.size() % 2 == 0, name, "are not pairs");
  if (!check.List(name, in.size(), 2 * kRunsMax)) return out;
  for (int i = 0; i + 1 < in.size(); i += 2) {
    const int first = check.Range(name, in.Get(i), 0, kWatchedRanksMax);
    const int more = check.Range(name, in.Get(i + 1), 0, kWatchedRanksMax);
    check.Require(out.size() + static_cast<size_t>(more) < size_t{2} * kWatchedRanksMax, name,
                  "are too many");
    if (!check.status().ok()) return out;
    for (int k = 0; k <= more; ++k) out.push_back(first + k);
  }
  return out;
}

// Ranks as pairs: the first of a run, and how many follow it.
template <typename P>
void Runs(Wire<P> wire, absl::string_view name, const WireRuns& (P::*get)() const,
          WireRuns* (P::*mut)(), std::vector<int>& ranks) {
  if (!wire.decodes()) return EncodeRuns(ranks, *(wire.out().*mut)());
  ranks = TakeRuns((wire.in().*get)(), name, wire.check());
}

void OperationFields(Wire<proto::WatchedOperation> wire, hangs::Operation& operation) {
  using P = proto::WatchedOperation;
  wire.Number("operation.kind", UpTo(OperationKind::kRecv), &P::kind, &P::set_kind, operation.kind);
  wire.Number("operation.state", UpTo(OperationState::kFailed), &P::state, &P::set_state,
              operation.state);
  wire.Plain(&P::sequence, &P::set_sequence, operation.sequence);
  wire.Plain(&P::bytes, &P::set_bytes, operation.bytes);
  wire.Plain(&P::peer, &P::set_peer, operation.peer);
  wire.Text("operation.dtype", kWatchedText, &P::dtype, &P::mutable_dtype, operation.dtype);
  wire.Text("operation.name", kWatchedText, &P::name, &P::mutable_name, operation.name);
  wire.Plain(&P::chain, &P::set_chain, operation.chain);
  wire.Plain(&P::awaited, &P::set_awaited, operation.awaited);
}

// What a message has no room for, each as a whole: only such parts, or all behind the first too.
enum class LeftOut { kEach, kAllBehind };

// Leaves out of an encoded message the parts with which it has more than `bytes_max`, and those
// that have more than `part_bytes_max`.
template <typename P, typename Part>
void KeepWithin(size_t bytes_max, size_t part_bytes_max, LeftOut left_out, P& message,
                google::protobuf::RepeatedPtrField<Part>* (P::*mut)()) {
  google::protobuf::RepeatedPtrField<Part>& parts = *(message.*mut)();
  google::protobuf::RepeatedPtrField<Part> apart;
  apart.UnsafeArenaSwap(&parts);
  size_t bytes = message.ByteSizeLong();
  apart.UnsafeArenaSwap(&parts);
  int num_kept = 0;
  for (int i = 0; i < parts.size(); ++i) {
    const size_t more = parts.Get(i).ByteSizeLong() + 8;
    if (more <= part_bytes_max && bytes + more <= bytes_max) {
      bytes += more;
      parts.SwapElements(num_kept++, i);
    } else if (left_out == LeftOut::kAllBehind) {
      break;
    }
  }
  parts.DeleteSubrange(num_kept, parts.size() - num_kept);
}

constexpr int kGroupsMax = kBoardGroups * 512;  // of all ranks of a node
constexpr int kRecordsMax = 4 * kBoardGroups;
constexpr ListBounds kFrames{kTexts.taken, hangs::kStackFramesMax};
constexpr NumberBounds kWatchPhases{0, hangs::kNumWatchPhases - 1};

// --- Summaries

void ProgressFields(Wire<proto::WatchSummary::Progress> wire, hangs::NodeProgress& progress) {
  using P = proto::WatchSummary::Progress;
  constexpr NumberBounds kSteps{0, int64_t{1} << 50};
  wire.Number("watch.step", kSteps, &P::step, &P::set_step, progress.step);
  int64_t behind = progress.step - progress.slowest_step;
  wire.Number("watch.behind", {0, progress.step + 1}, &P::slowest_behind, &P::set_slowest_behind,
              behind);
  wire.Number("watch.slowest", kRanks, &P::slowest_rank, &P::set_slowest_rank,
              progress.slowest_rank);
  wire.Plain(&P::steps_per_second, &P::set_steps_per_second, progress.steps_per_second);
  if (!wire.decodes()) return;
  progress.slowest_step = progress.step - behind;
  const float rate = wire.in().steps_per_second();
  if (!(rate >= 0 && rate < 1e9F)) progress.steps_per_second = -1;
}

void StandingFields(Wire<proto::WatchSummary::Standing> wire, hangs::Standing& standing) {
  using P = proto::WatchSummary::Standing;
  constexpr TextBounds kText{hangs::kStandingBytesMax, hangs::kStandingBytesMax};
  if (wire.decodes()) standing.is_told = true;
  wire.Number("watch.standing", UpTo(hangs::StandingKind::kVerdict), &P::kind, &P::set_kind,
              standing.kind);
  wire.Text("watch.standing", kText, &P::text, &P::mutable_text, standing.text);
  wire.Time("watch.standing", kMillis, &P::age_ms, &P::set_age_ms, standing.age);
}

void SilentFields(Wire<proto::WatchSummary::SilentRanks> wire, hangs::SilentRanks& ranks) {
  using P = proto::WatchSummary::SilentRanks;
  wire.Number("watch.first_rank", kRanks, &P::first_rank, &P::set_first_rank, ranks.first_rank);
  wire.Number("watch.num_ranks", kOneRankOrMore, &P::num_ranks, &P::set_num_ranks, ranks.num_ranks);
  wire.Number("watch.phase", kWatchPhases, &P::phase, &P::set_phase, ranks.phase);
  wire.Time("watch.silent", kMillis, &P::silent_ms, &P::set_silent_ms, ranks.silent_for);
}

void LearnedFields(Wire<proto::WatchSummary::Learned> wire, hangs::LearnedSilences::Count& count) {
  using P = proto::WatchSummary::Learned;
  constexpr NumberBounds kBuckets{0, hangs::SilenceHistory::kNumBuckets - 1};
  wire.Number("watch.learned", kWatchPhases, &P::phase, &P::set_phase, count.phase);
  wire.Number("watch.bucket", kBuckets, &P::bucket, &P::set_bucket, count.bucket);
  wire.Number("watch.count", kCount, &P::count, &P::set_count, count.count);
}

// Zeros at the end are not said: a server that knows fewer phases reads it until one of a new phase
// is learned.
void LongestField(Wire<proto::WatchSummary> wire,
                  std::array<absl::Duration, hangs::kNumWatchPhases>& longest) {
  using P = proto::WatchSummary;
  std::vector<int64_t> millis;
  for (size_t i = 0; !wire.decodes() && i < longest.size(); ++i) {
    if (longest[i] <= absl::ZeroDuration()) continue;
    millis.resize(i);
    millis.push_back(absl::ToInt64Milliseconds(longest[i]));
  }
  wire.Numbers("watch.longest", {hangs::kNumWatchPhases}, kUnits, &P::longest_ms,
               &P::mutable_longest_ms, millis);
  for (size_t i = 0; wire.decodes() && i < millis.size(); ++i) longest[i] = millis[i] * kMillis;
}

void OwnPacesField(Wire<proto::WatchSummary> wire, std::vector<absl::Duration>& own) {
  using P = proto::WatchSummary;
  constexpr ListBounds kPaces{hangs::kPacesMax, hangs::kPacesMax};
  std::vector<int64_t> micros;
  for (const absl::Duration pace : own) micros.push_back(absl::ToInt64Microseconds(pace));
  wire.Numbers("watch.own", kPaces, kUnits, &P::own_us, &P::mutable_own_us, micros);
  if (!wire.decodes()) return;
  for (const int64_t pace : micros) own.push_back(pace * kMicros);
}

void SummaryFields(Wire<proto::WatchSummary> wire, hangs::NodeSummary& summary) {
  using P = proto::WatchSummary;
  constexpr int kCountsMax = hangs::kNumWatchPhases * hangs::SilenceHistory::kNumBuckets;
  wire.Number("watch.round", kCount, &P::round, &P::set_round, summary.round);
  wire.Time("watch.hang_timeout", kMillis, &P::hang_timeout_ms, &P::set_hang_timeout_ms,
            summary.hang_timeout);
  wire.Plain(&P::ends_workers, &P::set_ends_workers, summary.ends_workers);
  wire.Plain(&P::may_replace, &P::set_may_replace, summary.may_replace);
  wire.List("watch.silent", {hangs::kSilentRanksMax, hangs::kSilentRanksMax}, &P::silent,
            &P::mutable_silent, summary.silent, SilentFields);
  wire.List("watch.learned", {kCountsMax}, &P::learned, &P::mutable_learned, summary.learned.counts,
            LearnedFields);
  LongestField(wire, summary.learned.longest);
  wire.Time("watch.silence_at_start", kMillis, &P::silence_at_start_ms, &P::set_silence_at_start_ms,
            summary.silence_at_start);
  wire.Number("watch.pace_window", kCount, &P::pace_window, &P::set_pace_window,
              summary.paces.window);
  wire.Number("watch.arrival_window", kCount, &P::arrival_window, &P::set_arrival_window,
              summary.arrival_window);
  wire.Number("watch.num_ended", kRanks, &P::num_ended, &P::set_num_ended, summary.num_ended);
  if (wire.Has(&P::has_progress, summary.progress.step >= 0)) {
    wire.Inner(&P::progress, &P::mutable_progress, summary.progress, ProgressFields);
  }
  if (wire.Has(&P::has_standing, summary.standing.is_told)) {
    wire.Inner(&P::standing, &P::mutable_standing, summary.standing, StandingFields);
  }
  OwnPacesField(wire, summary.paces.own);
}

// --- Details

void EncodeMembers(const std::vector<int>& members, proto::WatchDetails::Group& out) {
  const int size = static_cast<int>(members.size());
  bool is_whole_job = true;
  for (int i = 0; i < size; ++i) is_whole_job = is_whole_job && members[i] == i;
  out.set_is_whole_job(is_whole_job);
  for (int i = 0; !is_whole_job && i < size; ++i) {
    if (members[i] == hangs::kUnknownRank) continue;
    out.add_places(i);
    out.add_members(members[i]);
  }
}

std::vector<int> TakeMembers(const proto::WatchDetails::Group& in, int size, WireCheck& check) {
  std::vector<int> out;
  check.Require(in.places_size() == in.members_size(), "group.places", "do not fit the members");
  if (!check.status().ok()) return out;
  out.assign(size, hangs::kUnknownRank);
  for (int i = 0; in.is_whole_job() && i < size; ++i) out[i] = i;
  for (int i = 0; i < in.places_size() && check.status().ok(); ++i) {
    const int place = check.Range("group.places", in.places(i), 0, size - 1);
    const int member = check.Range("group.members", in.members(i), 0, kWatchedRanksMax);
    if (check.status().ok()) out[place] = member;
  }
  return out;
}

// `members_left`: how many a decoder takes, of all groups from here on.
void GroupFields(Wire<proto::WatchDetails::Group> wire, hangs::Group& group,
                 int64_t& members_left) {
  using P = proto::WatchDetails::Group;
  wire.Text("group.name", kWatchedText, &P::name, &P::mutable_name, group.name);
  wire.Plain(&P::id, &P::set_id, group.id);
  wire.Plain(&P::is_on_device, &P::set_is_on_device, group.is_on_device);
  int size = static_cast<int>(group.members.size());
  wire.Number("group.size", kRanks, &P::size, &P::set_size, size);
  members_left -= size;
  wire.Require(members_left >= 0, "group.size", "is too much, with the other groups");
  if (!wire.decodes()) return EncodeMembers(group.members, wire.out());
  group.members = TakeMembers(wire.in(), size, wire.check());
}

void RecordFields(Wire<proto::WatchDetails::Record> wire, hangs::GroupRecord& record,
                  int num_groups) {
  using P = proto::WatchDetails::Record;
  wire.Number("record.group", {0, num_groups - 1}, &P::group, &P::set_group, record.group);
  wire.Plain(&P::num_issued, &P::set_num_issued, record.num_issued);
  wire.List("record.operations", {kBoardOperations}, &P::operations, &P::mutable_operations,
            record.operations, OperationFields);
}

void RankFields(Wire<proto::WatchDetails::Rank> wire, hangs::RankEvidence& rank, int num_groups) {
  using P = proto::WatchDetails::Rank;
  wire.Number("rank.rank", kRanks, &P::rank, &P::set_rank, rank.rank);
  wire.Number("rank.pid", kCount, &P::pid, &P::set_pid, rank.pid);
  wire.Number("rank.life", UpTo(hangs::Life::kUnreachable), &P::life, &P::set_life, rank.life);
  wire.Number("rank.phase", UpTo(Phase::kEnd), &P::phase, &P::set_phase, rank.phase);
  if (wire.Has(&P::has_step, rank.step)) wire.Plain(&P::step, &P::set_step, *rank.step);
  wire.Time("rank.silent", kMillis, &P::silent_ms, &P::set_silent_ms, rank.silent_for);
  wire.Plain(&P::is_mute, &P::set_is_mute, rank.is_mute);
  wire.Plain(&P::tells_waits, &P::set_tells_waits, rank.tells_waits);
  wire.Plain(&P::is_busy, &P::set_is_busy, rank.is_busy);
  wire.Plain(&P::loops, &P::set_loops, rank.loops);
  wire.Text("rank.fault", kWatchedText, &P::fault, &P::mutable_fault, rank.fault);
  wire.Text("rank.doing", kWatchedText, &P::doing, &P::mutable_doing, rank.doing);
  wire.List("rank.records", {kRecordsMax}, &P::records, &P::mutable_records, rank.groups,
            [&](Wire<proto::WatchDetails::Record> record, hangs::GroupRecord& group) {
              RecordFields(record, group, num_groups);
            });
}

// Ranks are told as a whole or not at all: one that is left out would count as one that has come.
bool FitsIntoRuns(const std::vector<int>& ranks) {
  WireRuns runs;
  EncodeRuns(ranks, runs);
  return runs.size() < 2 * kRunsMax;
}

void GatheringFields(Wire<proto::WatchDetails::Gathering> wire, hangs::Gathering& gathering) {
  using P = proto::WatchDetails::Gathering;
  const auto each_once = [&](absl::string_view name, const std::vector<int>& ranks) {
    const auto twice = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<int>());
    wire.Require(twice == ranks.end(), name, "are not in order");
  };
  wire.Text("gathering.name", kWatchedText, &P::name, &P::mutable_name, gathering.name);
  wire.Plain(&P::is_start, &P::set_is_start, gathering.is_start);
  Runs(wire, "gathering.waiting", &P::waiting, &P::mutable_waiting, gathering.waiting);
  each_once("gathering.waiting", gathering.waiting);
  Runs(wire, "gathering.missing", &P::missing, &P::mutable_missing, gathering.missing);
  each_once("gathering.missing", gathering.missing);
  wire.Time("gathering.silent", kMillis, &P::silent_ms, &P::set_silent_ms, gathering.silent_for);
}

void GatheringsField(Wire<proto::WatchDetails> wire, std::vector<hangs::Gathering>& gatherings) {
  using P = proto::WatchDetails;
  constexpr ListBounds kGatherings{hangs::kGatheringsMax, hangs::kGatheringsMax};
  std::vector<hangs::Gathering> whole;
  std::copy_if(gatherings.begin(), gatherings.end(), std::back_inserter(whole),
               [](const hangs::Gathering& one) {
                 return FitsIntoRuns(one.waiting) && FitsIntoRuns(one.missing);
               });
  wire.List("gatherings", kGatherings, &P::gatherings, &P::mutable_gatherings, whole,
            GatheringFields);
  if (wire.decodes()) gatherings = std::move(whole);
}

void DetailsFields(Wire<proto::WatchDetails> wire, hangs::NodeDetails& details) {
  using P = proto::WatchDetails;
  hangs::Evidence& evidence = details.evidence;
  wire.Plain(&P::question, &P::set_question, details.question);
  wire.Inner(&P::summary, &P::mutable_summary, details.summary, SummaryFields);
  wire.Plain(&P::is_held, &P::set_is_held, details.is_held);
  if (wire.decodes()) evidence.round = details.summary.round;
  int64_t members_left = int64_t{1} << 22;
  wire.List("groups", {kGroupsMax}, &P::groups, &P::mutable_groups, evidence.groups,
            [&](Wire<proto::WatchDetails::Group> part, hangs::Group& group) {
              GroupFields(part, group, members_left);
            });
  const int num_groups = static_cast<int>(evidence.groups.size());
  wire.List("ranks", {kWatchedRanksMax}, &P::ranks, &P::mutable_ranks, evidence.ranks,
            [&](Wire<proto::WatchDetails::Rank> part, hangs::RankEvidence& rank) {
              if (part.decodes()) rank.round = evidence.round;
              RankFields(part, rank, num_groups);
            });
  GatheringsField(wire, details.gatherings);
  if (wire.decodes()) return;
  KeepWithin(kWatchWordBytesMax, kWatchedRankBytesMax, LeftOut::kEach, wire.out(),
             &P::mutable_ranks);
}

// --- Stacks

void ReportFields(Wire<proto::WatchedRankReport> wire, hangs::RankReport& report) {
  using P = proto::WatchedRankReport;
  wire.Number("report.rank", kRanks, &P::rank, &P::set_rank, report.rank);
  wire.Text("report.node", kWatchedText, &P::node, &P::mutable_node, report.node);
  wire.Number("report.pid", kCount, &P::pid, &P::set_pid, report.pid);
  wire.Text("report.phase", kWatchedText, &P::phase, &P::mutable_phase, report.phase);
  if (wire.Has(&P::has_step, report.step)) wire.Plain(&P::step, &P::set_step, *report.step);
  wire.Time("report.silent", kMillis, &P::silent_ms, &P::set_silent_ms, report.silent_for);
  wire.Number("report.told_by", UpTo(hangs::ToldBy::kTorchStore), &P::told_by, &P::set_told_by,
              report.told_by);
  wire.Text("report.doing", kWatchedText, &P::doing, &P::mutable_doing, report.doing);
  wire.Number("report.hold", UpTo(hangs::Hold::kMemory), &P::hold, &P::set_hold, report.hold);
  wire.Texts("report.frames", kFrames, kWatchedText, &P::frames, &P::mutable_frames, report.frames);
  wire.Text("report.no_frames", kWatchedText, &P::no_frames, &P::mutable_no_frames,
            report.no_frames);
  wire.Texts("report.python", kFrames, kWatchedText, &P::python, &P::mutable_python, report.python);
}

void StacksFields(Wire<proto::WatchStacks> wire, hangs::NodeStacks& stacks) {
  using P = proto::WatchStacks;
  wire.Plain(&P::question, &P::set_question, stacks.question);
  wire.Number("stacks.round", kCount, &P::round, &P::set_round, stacks.round);
  wire.List("reports", {kWatchedRanksMax}, &P::ranks, &P::mutable_ranks, stacks.ranks,
            ReportFields);
  wire.Plain(&P::has_moved, &P::set_has_moved, stacks.has_moved);
  if (wire.decodes()) return;
  KeepWithin(kWatchWordBytesMax, kWatchWordBytesMax, LeftOut::kAllBehind, wire.out(),
             &P::mutable_ranks);
}

// --- Verdicts

void DiagnosisFields(Wire<proto::WatchVerdict> wire, hangs::Diagnosis& diagnosis) {
  using P = proto::WatchVerdict;
  wire.Number("verdict.finding", UpTo(hangs::Finding::kOutOfSight), &P::finding, &P::set_finding,
              diagnosis.finding);
  Runs(wire, "verdict.culprits", &P::culprits, &P::mutable_culprits, diagnosis.culprits);
  Runs(wire, "verdict.waiting", &P::waiting, &P::mutable_waiting, diagnosis.waiting);
  wire.Text("verdict.group", kWatchedText, &P::group, &P::mutable_group, diagnosis.group);
  wire.Inner(&P::has_operation, &P::operation, &P::mutable_operation, diagnosis.operation,
             OperationFields);
  bool is_indirect = !diagnosis.is_direct;
  wire.Plain(&P::is_indirect, &P::set_is_indirect, is_indirect);
  if (wire.decodes()) diagnosis.is_direct = !is_indirect;
  wire.Text("verdict.words", kWatchedText, &P::words, &P::mutable_words, diagnosis.words);
  wire.Texts("verdict.path", kTexts, kWatchedText, &P::path, &P::mutable_path, diagnosis.path);
  wire.Texts("verdict.spoke_for_it", kTexts, kWatchedText, &P::spoke_for_it,
             &P::mutable_spoke_for_it, diagnosis.spoke_for_it);
  wire.Plain(&P::confidence, &P::set_confidence, diagnosis.confidence);
  wire.Plain(&P::can_heal, &P::set_can_heal, diagnosis.can_heal);
  wire.Number("verdict.cause", UpTo(hangs::Cause::kDisk), &P::cause, &P::set_cause,
              diagnosis.cause);
}

void VerdictFields(Wire<proto::WatchVerdict> wire, hangs::SayVerdict& order) {
  using P = proto::WatchVerdict;
  wire.Plain(&P::question, &P::set_question, order.question);
  wire.Number("verdict.round", kCount, &P::round, &P::set_round, order.round);
  wire.Text("verdict.reason", kWatchedText, &P::reason, &P::mutable_reason, order.reason);
  wire.Text("verdict.action", kWatchedText, &P::action, &P::mutable_action, order.action);
  wire.Time("verdict.since_detected", kMillis, &P::since_detected_ms, &P::set_since_detected_ms,
            order.since_detected);
  wire.Time("verdict.since_decided", kMillis, &P::since_decided_ms, &P::set_since_decided_ms,
            order.since_decided);
  wire.List("reports", {kWatchedRanksMax}, &P::ranks, &P::mutable_ranks, order.ranks, ReportFields);
  Runs(wire, "verdict.to_end", &P::to_end, &P::mutable_to_end, order.to_end);
  wire.Plain(&P::replaces, &P::set_replaces, order.replaces);
  DiagnosisFields(wire, order.diagnosis);
  if (wire.decodes()) return;
  KeepWithin(kWatchOrderBytesMax, kWatchOrderBytesMax, LeftOut::kAllBehind, wire.out(),
             &P::mutable_ranks);
}

// --- Who is late

void RowFields(Wire<proto::WatchArrivals::Row> wire, hangs::ArrivalRow& row) {
  using P = proto::WatchArrivals::Row;
  wire.Plain(&P::sequence, &P::set_sequence, row.sequence);
  wire.Number("arrivals.last_rank", kRanks, &P::last_rank, &P::set_last_rank, row.last_rank);
  wire.Number("arrivals.num_ranks", kOneRankOrMore, &P::num_ranks, &P::set_num_ranks,
              row.num_ranks);
  wire.Time("arrivals.ago", kMicros, &P::last_us, &P::set_last_us, row.last_ago);
  wire.Time("arrivals.ago", kMicros, &P::second_us, &P::set_second_us, row.second_ago);
  wire.Time("arrivals.ago", kMicros, &P::first_us, &P::set_first_us, row.first_ago);
}

void GroupArrivalsFields(Wire<proto::WatchArrivals::Group> wire, hangs::GroupArrivals& group) {
  using P = proto::WatchArrivals::Group;
  wire.Text("arrivals.name", kWatchedText, &P::name, &P::mutable_name, group.name);
  wire.Text("arrivals.label", kWatchedText, &P::label, &P::mutable_label, group.label);
  wire.Plain(&P::is_on_device, &P::set_is_on_device, group.is_on_device);
  wire.List("arrivals.rows", {hangs::kArrivalRowsMax, hangs::kArrivalRowsMax}, &P::rows,
            &P::mutable_rows, group.rows, RowFields);
}

void ArrivalsFields(Wire<proto::WatchArrivals> wire, hangs::NodeArrivals& arrivals) {
  using P = proto::WatchArrivals;
  constexpr ListBounds kGroups{hangs::kArrivalGroupsMax, hangs::kArrivalGroupsMax};
  wire.Plain(&P::question, &P::set_question, arrivals.question);
  wire.Number("arrivals.round", kCount, &P::round, &P::set_round, arrivals.round);
  wire.List("arrivals.groups", kGroups, &P::groups, &P::mutable_groups, arrivals.groups,
            GroupArrivalsFields);
}

// --- What ranks called last where one has aborted

constexpr ListBounds kSameCalls{hangs::kSameCallsMax, hangs::kSameCallsMax};

void CallFields(Wire<proto::WatchedCall> wire, hangs::Call& call) {
  using P = proto::WatchedCall;
  wire.Text("call.group", kWatchedText, &P::group, &P::mutable_group, call.group);
  wire.Text("call.label", kWatchedText, &P::label, &P::mutable_label, call.label);
  wire.Inner(&P::operation, &P::mutable_operation, call.operation, OperationFields);
  Runs(wire, "call.ranks", &P::ranks, &P::mutable_ranks, call.ranks);
  wire.Time("call.age", kMillis, &P::age_ms, &P::set_age_ms, call.age);
}

// A rank that does not fit is left out as a whole, and counts as not known.
void CallsOfRankFields(Wire<proto::WatchLastCalls::Rank> wire, hangs::RankCalls& rank) {
  using P = proto::WatchLastCalls::Rank;
  wire.Number("last_calls.rank", kRanks, &P::rank, &P::set_rank, rank.rank);
  wire.Time("last_calls.age", kMillis, &P::age_ms, &P::set_age_ms, rank.age);
  wire.List("last_calls.calls", {hangs::kLastCallsMax}, &P::calls, &P::mutable_calls, rank.calls,
            CallFields);
}

void LastCallsFields(Wire<proto::WatchLastCalls> wire, hangs::NodeLastCalls& word) {
  using P = proto::WatchLastCalls;
  wire.Number("last_calls.round", kCount, &P::round, &P::set_round, word.round);
  Runs(wire, "last_calls.aborted", &P::aborted, &P::mutable_aborted, word.aborted);
  wire.List("last_calls.ranks", {kWatchedRanksMax}, &P::ranks, &P::mutable_ranks, word.ranks,
            CallsOfRankFields);
  if (wire.decodes()) return;
  KeepWithin(kWatchWordBytesMax, kWatchedRankBytesMax, LeftOut::kEach, wire.out(),
             &P::mutable_ranks);
}

void AbortsFields(Wire<proto::WatchAborts> wire, hangs::SayAborts& order) {
  using P = proto::WatchAborts;
  hangs::AbortReport& report = order.report;
  wire.Number("aborts.round", kCount, &P::round, &P::set_round, order.round);
  Runs(wire, "aborts.aborted", &P::aborted, &P::mutable_aborted, report.aborted);
  wire.List("aborts.last", kSameCalls, &P::last, &P::mutable_last, report.last, CallFields);
  wire.List("aborts.differences", kSameCalls, &P::differences, &P::mutable_differences,
            report.differences, CallFields);
  Runs(wire, "aborts.unknown", &P::unknown, &P::mutable_unknown, report.unknown);
}

// --- Words and orders

void AbortedFields(Wire<proto::WatchAborted> wire, hangs::RankAborted& aborted) {
  using P = proto::WatchAborted;
  wire.Number("aborted.round", kCount, &P::round, &P::set_round, aborted.round);
  wire.Number("aborted.rank", kRanks, &P::rank, &P::set_rank, aborted.rank);
}

template <typename Message, typename Order>
void RoundField(Wire<Message> wire, Order& order) {
  wire.Number("order.round", kCount, &Message::round, &Message::set_round, order.round);
}

template <typename Question>
void QuestionFields(Wire<proto::WatchQuestion> wire, Question& order) {
  using P = proto::WatchQuestion;
  wire.Plain(&P::question, &P::set_question, order.question);
  RoundField(wire, order);
}

constexpr ListBounds kNamed{hangs::kRanksNamedMax, hangs::kRanksNamedMax};

void AskStacksFields(Wire<proto::WatchQuestion> wire, hangs::AskStacks& order) {
  using P = proto::WatchQuestion;
  QuestionFields(wire, order);
  wire.Numbers("order.first", kNamed, kRanks, &P::first, &P::mutable_first, order.first);
}

void NoticeFields(Wire<proto::WatchNotice> wire, hangs::SayNotice& order) {
  using P = proto::WatchNotice;
  RoundField(wire, order);
  wire.Number("order.finding", UpTo(hangs::Finding::kOutOfSight), &P::finding, &P::set_finding,
              order.finding);
  wire.Text("order.text", kWatchedText, &P::text, &P::mutable_text, order.text);
  wire.Numbers("order.named", kNamed, kRanks, &P::named, &P::mutable_named, order.named);
}

void RecoveryFields(Wire<proto::WatchNotice> wire, hangs::SayRecovery& order) {
  using P = proto::WatchNotice;
  RoundField(wire, order);
  wire.Text("order.text", kWatchedText, &P::text, &P::mutable_text, order.text);
}

void SlowFields(Wire<proto::WatchSlow> wire, hangs::SaySlow& order) {
  using P = proto::WatchSlow;
  RoundField(wire, order);
  wire.Plain(&P::is_over, &P::set_is_over, order.is_over);
  wire.Text("order.text", kWatchedText, &P::text, &P::mutable_text, order.text);
}

void WordFields(Wire<proto::WatchWord> wire, hangs::NodeWord& word) {
  using P = proto::WatchWord;
  wire.Case(&P::has_summary, &P::summary, &P::mutable_summary, word, SummaryFields);
  wire.Case(&P::has_details, &P::details, &P::mutable_details, word, DetailsFields);
  wire.Case(&P::has_stacks, &P::stacks, &P::mutable_stacks, word, StacksFields);
  wire.Case(&P::has_aborted, &P::aborted, &P::mutable_aborted, word, AbortedFields);
  wire.Case(&P::has_last_calls, &P::last_calls, &P::mutable_last_calls, word, LastCallsFields);
  wire.Case(&P::has_arrivals, &P::arrivals, &P::mutable_arrivals, word, ArrivalsFields);
  wire.NeedsCase(&P::word_case, "watch");
}

void OrderFields(Wire<proto::WatchOrder> wire, hangs::WatchOrder& order) {
  using P = proto::WatchOrder;
  wire.Case(&P::has_ask_details, &P::ask_details, &P::mutable_ask_details, order,
            QuestionFields<hangs::AskDetails>);
  wire.Case(&P::has_ask_stacks, &P::ask_stacks, &P::mutable_ask_stacks, order, AskStacksFields);
  wire.Case(&P::has_ask_arrivals, &P::ask_arrivals, &P::mutable_ask_arrivals, order,
            QuestionFields<hangs::AskArrivals>);
  wire.Case(&P::has_ask_last_calls, &P::ask_last_calls, &P::mutable_ask_last_calls, order,
            RoundField<proto::WatchQuestion, hangs::AskLastCalls>);
  wire.Case(&P::has_notice, &P::notice, &P::mutable_notice, order, NoticeFields);
  wire.Case(&P::has_recovery, &P::recovery, &P::mutable_recovery, order, RecoveryFields);
  wire.Case(&P::has_slow, &P::slow, &P::mutable_slow, order, SlowFields);
  wire.Case(&P::has_verdict, &P::verdict, &P::mutable_verdict, order, VerdictFields);
  wire.Case(&P::has_aborts, &P::aborts, &P::mutable_aborts, order, AbortsFields);
  wire.NeedsCase(&P::order_case, "order");
}

}  // namespace

void Encode(const hangs::NodeWord& word, proto::WatchWord* out) {
  EncodeFields(word, out, WordFields);
}
void Encode(const hangs::WatchOrder& order, proto::WatchOrder* out) {
  EncodeFields(order, out, OrderFields);
}

absl::StatusOr<hangs::NodeWord> Decode(const proto::WatchWord& in) {
  return DecodeFields<hangs::NodeWord>(in, WordFields);
}
absl::StatusOr<hangs::WatchOrder> Decode(const proto::WatchOrder& in) {
  return DecodeFields<hangs::WatchOrder>(in, OrderFields);
}

}  // namespace muster::rendezvous
