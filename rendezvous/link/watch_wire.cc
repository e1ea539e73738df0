#include "rendezvous/link/watch_wire.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "proto/io/wire_check.h"
#include "proto/watch.pb.h"
#include "rendezvous/link/abort_wire.h"
#include "rendezvous/link/watch_parts_wire.h"
#include "rendezvous/verdict/incident_parts.h"

namespace muster::rendezvous {
namespace {

using verdict::Cause;
using verdict::Finding;
using verdict::Hold;
using verdict::ToldBy;
using verdict::WatchPhase;

constexpr int kGroupsMax = kBoardGroups * 512;  // of all ranks of a node
constexpr int kRecordsMax = 4 * kBoardGroups;
constexpr int kFramesMax = verdict::kStackFramesMax;

// --- Summaries

void EncodeProgress(const verdict::NodeProgress& in, proto::WatchSummary* out) {
  if (in.step < 0) return;
  proto::WatchSummary::Progress* to = out->mutable_progress();
  to->set_step(in.step);
  to->set_slowest_behind(in.step - in.slowest_step);
  to->set_slowest_rank(in.slowest_rank);
  to->set_steps_per_second(static_cast<float>(in.steps_per_second));
}

verdict::NodeProgress TakeProgress(const proto::WatchSummary& in, WireCheck& check) {
  if (!in.has_progress()) return {};
  constexpr int64_t kStepsMax = int64_t{1} << 50;
  const auto step = check.Range<int64_t>("watch.step", in.progress().step(), 0, kStepsMax);
  const auto behind =
      check.Range<int64_t>("watch.behind", in.progress().slowest_behind(), 0, step + 1);
  const float rate = in.progress().steps_per_second();
  return {.step = step,
          .slowest_step = step - behind,
          .slowest_rank =
              check.Range("watch.slowest", in.progress().slowest_rank(), 0, kWatchedRanksMax),
          .steps_per_second = rate >= 0 && rate < 1e9F ? rate : -1.0};
}

void EncodeStanding(const verdict::Standing& in, proto::WatchSummary* out) {
  if (!in.is_told) return;
  out->mutable_standing()->set_kind(static_cast<int>(in.kind));
  out->mutable_standing()->set_text(in.text.substr(0, verdict::kStandingBytesMax));
  out->mutable_standing()->set_age_ms(Millis(in.age));
}

verdict::Standing TakeStanding(const proto::WatchSummary& in, WireCheck& check) {
  if (!in.has_standing()) return {};
  return {.is_told = true,
          .kind = FromNumber(check, "watch.standing", in.standing().kind(),
                             verdict::StandingKind::kVerdict),
          .text = check.Text("watch.standing", in.standing().text(), verdict::kStandingBytesMax),
          .age = FromMillis(check, "watch.standing", in.standing().age_ms())};
}

void Encode(const verdict::NodeSummary& in, proto::WatchSummary* out) {
  out->set_round(in.round.value());
  out->set_hang_timeout_ms(Millis(in.hang_timeout));
  out->set_ends_workers(in.ends_workers);
  out->set_may_replace(in.may_replace);
  out->set_silence_at_start_ms(Millis(in.silence_at_start));
  for (const verdict::SilentRanks& ranks : in.silent) {
    if (out->silent_size() == verdict::kSilentRanksMax) break;
    proto::WatchSummary::SilentRanks* to = out->add_silent();
    to->set_first_rank(ranks.first_rank);
    to->set_num_ranks(ranks.num_ranks);
    to->set_phase(static_cast<int>(ranks.phase));
    to->set_silent_ms(Millis(ranks.silent_for));
  }
  for (const verdict::LearnedSilences::Count& count : in.learned.counts) {
    proto::WatchSummary::Learned* to = out->add_learned();
    to->set_phase(static_cast<int>(count.phase));
    to->set_bucket(count.bucket);
    to->set_count(count.count);
  }
  // Zeros at the end are not said: a server that knows fewer phases reads it until one of a new
  // phase is learned.
  const auto& longest = in.learned.longest;
  size_t num_phases = longest.size();
  while (num_phases > 0 && longest[num_phases - 1] <= absl::ZeroDuration()) --num_phases;
  for (size_t i = 0; i < num_phases; ++i) out->add_longest_ms(Millis(longest[i]));
  out->set_pace_window(in.paces.window);
  out->set_arrival_window(in.arrival_window);
  EncodeProgress(in.progress, out);
  EncodeStanding(in.standing, out);
  for (const absl::Duration own : in.paces.own) {
    if (out->own_us_size() < verdict::kPacesMax) out->add_own_us(absl::ToInt64Microseconds(own));
  }
}

verdict::NodeSummary TakeSummary(const proto::WatchSummary& in, WireCheck& check) {
  constexpr WatchPhase kLastPhase = static_cast<WatchPhase>(verdict::kNumWatchPhases - 1);
  verdict::NodeSummary out{
      .round = Round(check.Count("watch.round", in.round())),
      .hang_timeout = FromMillis(check, "watch.hang_timeout", in.hang_timeout_ms()),
      .ends_workers = in.ends_workers(),
      .may_replace = in.may_replace()};
  if (check.List("watch.silent", in.silent_size(), verdict::kSilentRanksMax)) {
    for (const proto::WatchSummary::SilentRanks& ranks : in.silent()) {
      out.silent.push_back(
          {.first_rank = check.Range("watch.first_rank", ranks.first_rank(), 0, kWatchedRanksMax),
           .num_ranks = check.Range("watch.num_ranks", ranks.num_ranks(), 1, kWatchedRanksMax),
           .phase = FromNumber(check, "watch.phase", ranks.phase(), kLastPhase),
           .silent_for = FromMillis(check, "watch.silent", ranks.silent_ms())});
    }
  }
  constexpr int kCountsMax = verdict::kNumWatchPhases * verdict::HangLimits::kNumBuckets;
  if (check.List("watch.learned", in.learned_size(), kCountsMax)) {
    for (const proto::WatchSummary::Learned& count : in.learned()) {
      out.learned.counts.push_back(
          {.phase = FromNumber(check, "watch.learned", count.phase(), kLastPhase),
           .bucket =
               check.Range("watch.bucket", count.bucket(), 0, verdict::HangLimits::kNumBuckets - 1),
           .count = check.Count("watch.count", count.count())});
    }
  }
  if (check.List("watch.longest", in.longest_ms_size(), verdict::kNumWatchPhases)) {
    for (int i = 0; i < in.longest_ms_size(); ++i) {
      out.learned.longest[i] = FromMillis(check, "watch.longest", in.longest_ms(i));
    }
  }
  out.silence_at_start = FromMillis(check, "watch.silence_at_start", in.silence_at_start_ms());
  out.paces.window = check.Count("watch.pace_window", in.pace_window());
  out.arrival_window = check.Count("watch.arrival_window", in.arrival_window());
  out.progress = TakeProgress(in, check);
  out.standing = TakeStanding(in, check);
  if (check.List("watch.own", in.own_us_size(), verdict::kPacesMax)) {
    for (const int64_t own : in.own_us()) {
      out.paces.own.push_back(
          absl::Microseconds(check.Range<int64_t>("watch.own", own, 0, int64_t{1} << 50)));
    }
  }
  return out;
}

// --- Details

void Encode(const verdict::Group& in, proto::WatchDetails::Group* out) {
  out->set_name(Cut(in.name));
  out->set_id(in.id);
  out->set_is_on_device(in.is_on_device);
  const int size = static_cast<int>(in.members.size());
  out->set_size(size);
  bool is_whole_job = true;
  for (int i = 0; i < size; ++i) is_whole_job = is_whole_job && in.members[i] == i;
  out->set_is_whole_job(is_whole_job);
  if (is_whole_job) return;
  for (int i = 0; i < size; ++i) {
    if (in.members[i] == verdict::kUnknownRank) continue;
    out->add_places(i);
    out->add_members(in.members[i]);
  }
}

verdict::Group TakeGroup(const proto::WatchDetails::Group& in, int64_t& members_left,
                         WireCheck& check) {
  verdict::Group out{.name = TakeText(check, "group.name", in.name()),
                     .members = {},
                     .id = in.id(),
                     .is_on_device = in.is_on_device()};
  const int size = check.Range("group.size", in.size(), 0, kWatchedRanksMax);
  members_left -= size;
  check.Require(members_left >= 0, "group.size", "is too much, with the other groups");
  check.Require(in.places_size() == in.members_size(), "group.places", "do not fit the members");
  if (!check.status().ok()) return out;
  out.members.assign(size, verdict::kUnknownRank);
  for (int i = 0; in.is_whole_job() && i < size; ++i) out.members[i] = i;
  for (int i = 0; i < in.places_size() && check.status().ok(); ++i) {
    const int place = check.Range("group.places", in.places(i), 0, size - 1);
    const int member = check.Range("group.members", in.members(i), 0, kWatchedRanksMax);
    if (check.status().ok()) out.members[place] = member;
  }
  return out;
}

void Encode(const verdict::RankEvidence& in, proto::WatchDetails::Rank* out) {
  out->set_rank(in.rank);
  out->set_pid(in.pid);
  out->set_life(static_cast<int>(in.life));
  out->set_phase(static_cast<int>(in.phase));
  if (in.step) out->set_step(*in.step);
  out->set_silent_ms(Millis(in.silent_for));
  out->set_tells_waits(in.tells_waits);
  out->set_is_mute(in.is_mute);
  out->set_is_busy(in.is_busy);
  out->set_fault(Cut(in.fault));
  out->set_doing(Cut(in.doing));
  for (const verdict::GroupRecord& record : in.groups) {
    proto::WatchDetails::Record* to = out->add_records();
    to->set_group(record.group);
    to->set_num_issued(record.num_issued);
    for (const verdict::Operation& op : record.operations)
      EncodeOperation(op, to->add_operations());
  }
}

verdict::RankEvidence TakeRank(const proto::WatchDetails::Rank& in, Round round, int num_groups,
                               WireCheck& check) {
  verdict::RankEvidence out{
      .rank = check.Range("rank.rank", in.rank(), 0, kWatchedRanksMax),
      .round = round,
      .pid = check.Count("rank.pid", in.pid()),
      .life = FromNumber(check, "rank.life", in.life(), verdict::Life::kUnreachable),
      .phase = FromNumber(check, "rank.phase", in.phase(), Phase::kEnd),
      .silent_for = FromMillis(check, "rank.silent", in.silent_ms()),
      .is_mute = in.is_mute(),
      .tells_waits = in.tells_waits(),
      .is_busy = in.is_busy(),
      .fault = TakeText(check, "rank.fault", in.fault()),
      .doing = TakeText(check, "rank.doing", in.doing())};
  if (in.has_step()) out.step = in.step();
  if (!check.List("rank.records", in.records_size(), kRecordsMax)) return out;
  for (const proto::WatchDetails::Record& record : in.records()) {
    verdict::GroupRecord taken{
        .group = check.Range("record.group", record.group(), 0, num_groups - 1),
        .num_issued = record.num_issued()};
    if (!check.List("record.operations", record.operations_size(), kBoardOperations)) break;
    for (const proto::WatchedOperation& op : record.operations()) {
      taken.operations.push_back(TakeOperation(op, check));
    }
    out.groups.push_back(std::move(taken));
  }
  return out;
}

// As a whole or not at all: a rank that is left out would count as one that has come.
void Encode(const verdict::Gathering& in, proto::WatchDetails* out) {
  proto::WatchDetails::Gathering* to = out->add_gatherings();
  to->set_name(Cut(in.name));
  to->set_is_start(in.is_start);
  EncodeRuns(in.waiting, to->mutable_waiting());
  EncodeRuns(in.missing, to->mutable_missing());
  to->set_silent_ms(Millis(in.silent_for));
  const bool is_full = to->waiting_size() == 2 * kRunsMax || to->missing_size() == 2 * kRunsMax;
  if (is_full) out->mutable_gatherings()->RemoveLast();
}

verdict::Gathering TakeGathering(const proto::WatchDetails::Gathering& in, WireCheck& check) {
  return {.name = TakeText(check, "gathering.name", in.name()),
          .is_start = in.is_start(),
          .waiting = TakeSortedRuns(in.waiting(), "gathering.waiting", check),
          .missing = TakeSortedRuns(in.missing(), "gathering.missing", check),
          .silent_for = FromMillis(check, "gathering.silent", in.silent_ms())};
}

void Encode(const verdict::NodeDetails& in, proto::WatchDetails* out) {
  out->set_question(in.question);
  Encode(in.summary, out->mutable_summary());
  out->set_is_held(in.is_held);
  for (const verdict::Group& group : in.evidence.groups) Encode(group, out->add_groups());
  for (const verdict::Gathering& gathering : in.gatherings) {
    if (out->gatherings_size() < static_cast<int>(verdict::kGatheringsMax)) Encode(gathering, out);
  }
  size_t bytes = out->ByteSizeLong();
  for (const verdict::RankEvidence& rank : in.evidence.ranks) {
    Encode(rank, out->add_ranks());
    const size_t more = out->ranks(out->ranks_size() - 1).ByteSizeLong() + 8;
    if (more > kWatchedRankBytesMax || bytes + more > kWatchWordBytesMax) {
      out->mutable_ranks()->RemoveLast();
    } else {
      bytes += more;
    }
  }
}

verdict::NodeDetails TakeDetails(const proto::WatchDetails& in, WireCheck& check) {
  verdict::NodeDetails out{.question = in.question(),
                           .summary = TakeSummary(in.summary(), check),
                           .is_held = in.is_held()};
  out.evidence.round = out.summary.round;
  int64_t members_left = int64_t{1} << 22;
  if (check.List("groups", in.groups_size(), kGroupsMax)) {
    for (const proto::WatchDetails::Group& group : in.groups()) {
      out.evidence.groups.push_back(TakeGroup(group, members_left, check));
    }
  }
  if (check.List("ranks", in.ranks_size(), kWatchedRanksMax)) {
    for (const proto::WatchDetails::Rank& rank : in.ranks()) {
      out.evidence.ranks.push_back(TakeRank(rank, out.evidence.round, in.groups_size(), check));
    }
  }
  if (check.List("gatherings", in.gatherings_size(), verdict::kGatheringsMax)) {
    for (const proto::WatchDetails::Gathering& gathering : in.gatherings()) {
      out.gatherings.push_back(TakeGathering(gathering, check));
    }
  }
  return out;
}

// --- Stacks

void Encode(const verdict::RankReport& in, proto::WatchedRankReport* out) {
  out->set_rank(in.rank);
  out->set_node(Cut(in.node));
  out->set_pid(in.pid);
  out->set_phase(Cut(in.phase));
  if (in.step) out->set_step(*in.step);
  out->set_silent_ms(Millis(in.silent_for));
  out->set_doing(Cut(in.doing));
  out->set_hold(static_cast<int>(in.hold));
  out->set_told_by(static_cast<int>(in.told_by));
  for (const std::string& frame : in.frames) {
    if (out->frames_size() < kFramesMax) out->add_frames(Cut(frame));
  }
  out->set_no_frames(Cut(in.no_frames));
  for (const std::string& frame : in.python) {
    if (out->python_size() < kFramesMax) out->add_python(Cut(frame));
  }
}

verdict::RankReport TakeReport(const proto::WatchedRankReport& in, WireCheck& check) {
  verdict::RankReport out{
      .rank = check.Range("report.rank", in.rank(), 0, kWatchedRanksMax),
      .node = TakeText(check, "report.node", in.node()),
      .pid = check.Count("report.pid", in.pid()),
      .phase = TakeText(check, "report.phase", in.phase()),
      .silent_for = FromMillis(check, "report.silent", in.silent_ms()),
      .told_by = FromNumber(check, "report.told_by", in.told_by(), ToldBy::kTorchStore),
      .doing = TakeText(check, "report.doing", in.doing()),
      .hold = FromNumber(check, "report.hold", in.hold(), Hold::kMemory),
      .frames = TakeTexts(check, "report.frames", in.frames()),
      .no_frames = TakeText(check, "report.no_frames", in.no_frames()),
      .python = TakeTexts(check, "report.python", in.python())};
  if (in.has_step()) out.step = in.step();
  return out;
}

template <typename Message>
void EncodeReports(const std::vector<verdict::RankReport>& reports, size_t bytes_max,
                   Message* out) {
  size_t bytes = out->ByteSizeLong();
  for (const verdict::RankReport& report : reports) {
    Encode(report, out->add_ranks());
    bytes += out->ranks(out->ranks_size() - 1).ByteSizeLong() + 8;
    if (bytes <= bytes_max) continue;
    out->mutable_ranks()->RemoveLast();
    return;
  }
}

template <typename Message>
std::vector<verdict::RankReport> TakeReports(const Message& in, WireCheck& check) {
  std::vector<verdict::RankReport> out;
  if (!check.List("reports", in.ranks_size(), kWatchedRanksMax)) return out;
  for (const proto::WatchedRankReport& report : in.ranks()) {
    out.push_back(TakeReport(report, check));
  }
  return out;
}

// --- Verdicts

template <typename List>
void EncodeTexts(const std::vector<std::string>& texts, List* out) {
  for (const std::string& text : texts) {
    if (out->size() < kTextsMax) *out->Add() = Cut(text);
  }
}

void Encode(const verdict::SayVerdict& in, proto::WatchVerdict* out) {
  const verdict::Diagnosis& diagnosis = in.diagnosis;
  out->set_question(in.question);
  out->set_round(in.round.value());
  out->set_finding(static_cast<int>(diagnosis.finding));
  EncodeRuns(diagnosis.culprits, out->mutable_culprits());
  EncodeRuns(diagnosis.waiting, out->mutable_waiting());
  out->set_group(Cut(diagnosis.group));
  if (diagnosis.operation) EncodeOperation(*diagnosis.operation, out->mutable_operation());
  out->set_is_indirect(!diagnosis.is_direct);
  EncodeTexts(diagnosis.path, out->mutable_path());
  EncodeTexts(diagnosis.spoke_for_it, out->mutable_spoke_for_it());
  out->set_confidence(diagnosis.confidence);
  out->set_can_heal(diagnosis.can_heal);
  out->set_cause(static_cast<int>(diagnosis.cause));
  out->set_words(Cut(diagnosis.words));
  out->set_reason(Cut(in.reason));
  out->set_action(Cut(in.action));
  out->set_since_detected_ms(Millis(in.since_detected));
  out->set_since_decided_ms(Millis(in.since_decided));
  EncodeRuns(in.to_end, out->mutable_to_end());
  out->set_replaces(in.replaces);
  EncodeReports(in.ranks, kWatchOrderBytesMax, out);
}

verdict::SayVerdict TakeVerdict(const proto::WatchVerdict& in, WireCheck& check) {
  verdict::SayVerdict out{
      .question = in.question(),
      .round = Round(check.Count("verdict.round", in.round())),
      .reason = TakeText(check, "verdict.reason", in.reason()),
      .action = TakeText(check, "verdict.action", in.action()),
      .since_detected = FromMillis(check, "verdict.since_detected", in.since_detected_ms()),
      .since_decided = FromMillis(check, "verdict.since_decided", in.since_decided_ms()),
      .ranks = TakeReports(in, check),
      .to_end = TakeRuns(in.to_end(), "verdict.to_end", check),
      .replaces = in.replaces()};
  verdict::Diagnosis& diagnosis = out.diagnosis;
  diagnosis.finding = FromNumber(check, "verdict.finding", in.finding(), Finding::kOutOfSight);
  diagnosis.culprits = TakeRuns(in.culprits(), "verdict.culprits", check);
  diagnosis.waiting = TakeRuns(in.waiting(), "verdict.waiting", check);
  diagnosis.group = TakeText(check, "verdict.group", in.group());
  if (in.has_operation()) diagnosis.operation = TakeOperation(in.operation(), check);
  diagnosis.is_direct = !in.is_indirect();
  diagnosis.words = TakeText(check, "verdict.words", in.words());
  diagnosis.path = TakeTexts(check, "verdict.path", in.path());
  diagnosis.spoke_for_it = TakeTexts(check, "verdict.spoke_for_it", in.spoke_for_it());
  diagnosis.confidence = in.confidence();
  diagnosis.can_heal = in.can_heal();
  diagnosis.cause = FromNumber(check, "verdict.cause", in.cause(), Cause::kDisk);
  return out;
}

// --- Who is late

int64_t Micros(absl::Duration duration) {
  return absl::ToInt64Microseconds(std::max(duration, absl::ZeroDuration()));
}
absl::Duration FromMicros(WireCheck& check, int64_t micros) {
  return absl::Microseconds(check.Range<int64_t>("arrivals.ago", micros, 0, int64_t{1} << 50));
}

void Encode(const verdict::NodeArrivals& in, proto::WatchArrivals* out) {
  out->set_question(in.question);
  out->set_round(in.round.value());
  for (const verdict::GroupArrivals& group : in.groups) {
    if (out->groups_size() == static_cast<int>(verdict::kArrivalGroupsMax)) return;
    proto::WatchArrivals::Group* to = out->add_groups();
    to->set_name(Cut(group.name));
    to->set_label(Cut(group.label));
    to->set_is_on_device(group.is_on_device);
    for (const verdict::ArrivalRow& row : group.rows) {
      if (to->rows_size() == static_cast<int>(verdict::kArrivalRowsMax)) break;
      proto::WatchArrivals::Row* added = to->add_rows();
      added->set_sequence(row.sequence);
      added->set_last_rank(row.last_rank);
      added->set_num_ranks(row.num_ranks);
      added->set_last_us(Micros(row.last_ago));
      added->set_second_us(Micros(row.second_ago));
      added->set_first_us(Micros(row.first_ago));
    }
  }
}

verdict::NodeArrivals TakeArrivals(const proto::WatchArrivals& in, WireCheck& check) {
  verdict::NodeArrivals out{.question = in.question(),
                            .round = Round(check.Count("arrivals.round", in.round()))};
  if (!check.List("arrivals.groups", in.groups_size(), verdict::kArrivalGroupsMax)) return out;
  for (const proto::WatchArrivals::Group& group : in.groups()) {
    verdict::GroupArrivals taken{.name = TakeText(check, "arrivals.name", group.name()),
                                 .label = TakeText(check, "arrivals.label", group.label()),
                                 .is_on_device = group.is_on_device()};
    if (!check.List("arrivals.rows", group.rows_size(), verdict::kArrivalRowsMax)) return out;
    for (const proto::WatchArrivals::Row& row : group.rows()) {
      taken.rows.push_back(
          {.sequence = row.sequence(),
           .last_rank = check.Range("arrivals.last_rank", row.last_rank(), 0, kWatchedRanksMax),
           .num_ranks = check.Range("arrivals.num_ranks", row.num_ranks(), 1, kWatchedRanksMax),
           .last_ago = FromMicros(check, row.last_us()),
           .second_ago = FromMicros(check, row.second_us()),
           .first_ago = FromMicros(check, row.first_us())});
    }
    out.groups.push_back(std::move(taken));
  }
  return out;
}

struct WordEncoder {
  proto::WatchWord* out;

  void operator()(const verdict::NodeSummary& word) const { Encode(word, out->mutable_summary()); }
  void operator()(const verdict::NodeDetails& word) const { Encode(word, out->mutable_details()); }
  void operator()(const verdict::NodeStacks& word) const {
    proto::WatchStacks* to = out->mutable_stacks();
    to->set_question(word.question);
    to->set_round(word.round.value());
    to->set_has_moved(word.has_moved);
    EncodeReports(word.ranks, kWatchWordBytesMax, to);
  }
  void operator()(const verdict::RankAborted& word) const {
    out->mutable_aborted()->set_round(word.round.value());
    out->mutable_aborted()->set_rank(word.rank);
  }
  void operator()(const verdict::NodeLastCalls& word) const {
    EncodeLastCalls(word, out->mutable_last_calls());
  }
  void operator()(const verdict::NodeArrivals& word) const {
    Encode(word, out->mutable_arrivals());
  }
};

struct OrderEncoder {
  proto::WatchOrder* out;

  void operator()(const verdict::AskDetails& order) const {
    out->mutable_ask_details()->set_question(order.question);
    out->mutable_ask_details()->set_round(order.round.value());
  }
  void operator()(const verdict::AskStacks& order) const {
    out->mutable_ask_stacks()->set_question(order.question);
    out->mutable_ask_stacks()->set_round(order.round.value());
  }
  void operator()(const verdict::SayNotice& order) const {
    out->mutable_notice()->set_round(order.round.value());
    out->mutable_notice()->set_finding(static_cast<int>(order.finding));
    out->mutable_notice()->set_text(Cut(order.text));
  }
  void operator()(const verdict::SaySlow& order) const {
    out->mutable_slow()->set_round(order.round.value());
    out->mutable_slow()->set_is_over(order.is_over);
    out->mutable_slow()->set_text(Cut(order.text));
  }
  void operator()(const verdict::SayRecovery& order) const {
    out->mutable_recovery()->set_round(order.round.value());
    out->mutable_recovery()->set_text(Cut(order.text));
  }
  void operator()(const verdict::SayVerdict& order) const { Encode(order, out->mutable_verdict()); }
  void operator()(const verdict::AskLastCalls& order) const {
    out->mutable_ask_last_calls()->set_round(order.round.value());
  }
  void operator()(const verdict::SayAborts& order) const {
    EncodeAborts(order, out->mutable_aborts());
  }
  void operator()(const verdict::AskArrivals& order) const {
    out->mutable_ask_arrivals()->set_question(order.question);
    out->mutable_ask_arrivals()->set_round(order.round.value());
  }
};

}  // namespace

void Encode(const verdict::NodeWord& word, proto::WatchWord* out) {
  std::visit(WordEncoder{out}, word);
}

void Encode(const verdict::WatchOrder& order, proto::WatchOrder* out) {
  std::visit(OrderEncoder{out}, order);
}

absl::StatusOr<verdict::NodeWord> Decode(const proto::WatchWord& in) {
  WireCheck check;
  verdict::NodeWord out;
  switch (in.word_case()) {
    case proto::WatchWord::kSummary:
      out = TakeSummary(in.summary(), check);
      break;
    case proto::WatchWord::kDetails:
      out = TakeDetails(in.details(), check);
      break;
    case proto::WatchWord::kStacks:
      out = verdict::NodeStacks{.question = in.stacks().question(),
                                .round = Round(check.Count("stacks.round", in.stacks().round())),
                                .ranks = TakeReports(in.stacks(), check),
                                .has_moved = in.stacks().has_moved()};
      break;
    case proto::WatchWord::kAborted:
      out = verdict::RankAborted{
          Round(check.Count("aborted.round", in.aborted().round())),
          check.Range("aborted.rank", in.aborted().rank(), 0, kWatchedRanksMax)};
      break;
    case proto::WatchWord::kLastCalls:
      out = TakeLastCalls(in.last_calls(), check);
      break;
    case proto::WatchWord::kArrivals:
      out = TakeArrivals(in.arrivals(), check);
      break;
    case proto::WatchWord::WORD_NOT_SET:
      check.Require(false, "watch", "is not known to this version of muster");
      break;
  }
  if (!check.status().ok()) return check.status();
  return out;
}

absl::StatusOr<verdict::WatchOrder> Decode(const proto::WatchOrder& in) {
  WireCheck check;
  verdict::WatchOrder out;
  switch (in.order_case()) {
    case proto::WatchOrder::kAskDetails:
      out = verdict::AskDetails{in.ask_details().question(),
                                Round(check.Count("order.round", in.ask_details().round()))};
      break;
    case proto::WatchOrder::kAskStacks:
      out = verdict::AskStacks{in.ask_stacks().question(),
                               Round(check.Count("order.round", in.ask_stacks().round()))};
      break;
    case proto::WatchOrder::kNotice:
      out = verdict::SayNotice{
          Round(check.Count("order.round", in.notice().round())),
          FromNumber(check, "order.finding", in.notice().finding(), Finding::kOutOfSight),
          TakeText(check, "order.text", in.notice().text())};
      break;
    case proto::WatchOrder::kRecovery:
      out = verdict::SayRecovery{Round(check.Count("order.round", in.recovery().round())),
                                 TakeText(check, "order.text", in.recovery().text())};
      break;
    case proto::WatchOrder::kVerdict:
      out = TakeVerdict(in.verdict(), check);
      break;
    case proto::WatchOrder::kSlow:
      out = verdict::SaySlow{Round(check.Count("order.round", in.slow().round())),
                             in.slow().is_over(), TakeText(check, "order.text", in.slow().text())};
      break;
    case proto::WatchOrder::kAskLastCalls:
      out = verdict::AskLastCalls{Round(check.Count("order.round", in.ask_last_calls().round()))};
      break;
    case proto::WatchOrder::kAborts:
      out = TakeAborts(in.aborts(), check);
      break;
    case proto::WatchOrder::kAskArrivals:
      out = verdict::AskArrivals{in.ask_arrivals().question(),
                                 Round(check.Count("order.round", in.ask_arrivals().round()))};
      break;
    case proto::WatchOrder::ORDER_NOT_SET:
      check.Require(false, "order", "is not known to this version of muster");
      break;
  }
  if (!check.status().ok()) return check.status();
  return out;
}

}  // namespace muster::rendezvous
