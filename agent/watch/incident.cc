#include "agent/watch/incident.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "proto/base/words.h"
#include "rendezvous/hangs/evidence/cause.h"
#include "rendezvous/hangs/judge/hang_judge.h"

namespace muster::agent {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFramesInWords = 4;
constexpr size_t kRanksInWords = 8;

bool IsCulprit(const Incident& incident, int rank) {
  const std::vector<int>& culprits = incident.diagnosis.culprits;
  return std::find(culprits.begin(), culprits.end(), rank) != culprits.end();
}

// The ranks whose silence was told, keyed by what told it: those concerned that live and were
// silent for long enough.
std::map<hangs::ToldBy, std::vector<int>> Detectors(const Incident& incident) {
  const std::vector<int>& waiting = incident.diagnosis.waiting;
  std::map<hangs::ToldBy, std::vector<int>> out;
  for (const RankReport& rank : incident.ranks) {
    const bool is_concerned = IsCulprit(incident, rank.rank) ||
                              std::find(waiting.begin(), waiting.end(), rank.rank) != waiting.end();
    if (!is_concerned || rank.pid == 0 || rank.told_by == hangs::ToldBy::kUnknown) continue;
    if (rank.silent_for >= hangs::kSuspiciousSilence) out[rank.told_by].push_back(rank.rank);
  }
  for (auto& [told_by, ranks] : out) std::sort(ranks.begin(), ranks.end());
  return out;
}

// "detected by silence: ranks 0 and 2 on the progress board, rank 1 in its marks", or nothing.
std::string DetectionInWords(const Incident& incident) {
  constexpr std::array<absl::string_view, 5> kWhere = {"", "on the progress board", "in its marks",
                                                       "to PyTorch's flight recorder",
                                                       "at PyTorch's store"};
  std::vector<std::string> parts;
  for (const auto& [told_by, ranks] : Detectors(incident)) {
    parts.push_back(absl::StrCat(RanksInWords(ranks), " ", kWhere[static_cast<size_t>(told_by)]));
  }
  return parts.empty() ? "" : absl::StrCat("detected by silence: ", absl::StrJoin(parts, ", "));
}

// A function's name without what it was made for: arguments and those of templates.
std::string ShortName(const std::string& frame) {
  if (absl::StartsWith(frame, "? in ")) return frame;
  std::string name;
  int depth = 0;
  for (size_t i = 0; i < frame.size(); ++i) {
    if (absl::StartsWith(absl::string_view(frame).substr(i), "(anonymous namespace)")) {
      i += std::strlen("(anonymous namespace)::") - 1;
      continue;
    }
    const char c = frame[i];
    if (c == '(' && depth == 0) break;
    depth += (c == '<') - (c == '>');
    if (depth == 0 && c != '>') name.push_back(c);
  }
  // A template's name comes with what it returns.
  const size_t space = name.rfind(' ');
  return space == std::string::npos || space + 1 == name.size() ? name : name.substr(space + 1);
}

// What libraries put between the program and the kernel tells nobody anything.
std::vector<std::string> TellingFrames(const std::vector<std::string>& frames) {
  constexpr absl::string_view kUntelling[] = {"? in ",  "std::",   "absl::", "pthread_", "__",
                                              "clock_", "syscall", "Absl",   "_start",   "main"};
  std::vector<std::string> telling;
  for (const bool all : {false, true}) {
    for (const std::string& frame : frames) {
      const std::string name = ShortName(frame);
      const bool tells = all || std::none_of(std::begin(kUntelling), std::end(kUntelling),
                                             [&](absl::string_view prefix) {
                                               return absl::StartsWith(name, prefix);
                                             });
      if (tells && telling.size() < kFramesInWords) telling.push_back(name);
    }
    if (!telling.empty()) break;
  }
  return telling;
}

Json ToJson(const hangs::Operation& op, const std::string& group) {
  return {{"group", group},    {"kind", hangs::NameOf(op)}, {"sequence", op.sequence},
          {"bytes", op.bytes}, {"dtype", op.dtype},         {"peer", op.peer}};
}

Json VerdictToJson(const hangs::Diagnosis& diagnosis) {
  Json verdict = {{"finding", hangs::ToString(diagnosis.finding)},
                  {"cause", std::string(hangs::ToString(diagnosis.cause))},
                  {"cause_in_words", diagnosis.cause == hangs::Cause::kUnknown
                                         ? std::string()
                                         : std::string(hangs::InWords(diagnosis.cause))},
                  {"culprits", diagnosis.culprits},
                  {"waiting", diagnosis.waiting},
                  {"confidence", diagnosis.confidence},
                  {"path", diagnosis.path},
                  {"spoke_for_it", diagnosis.spoke_for_it}};
  if (diagnosis.operation) {
    verdict["operation"] = ToJson(*diagnosis.operation, diagnosis.group);
  }
  return verdict;
}

Json ToJson(const RankReport& rank) {
  Json json = {{"rank", rank.rank},
               {"pid", rank.pid},
               {"phase", rank.phase},
               {"silent_s", absl::ToDoubleSeconds(rank.silent_for)},
               {"doing", rank.doing}};
  if (!rank.node.empty()) json["node"] = rank.node;
  if (rank.step) json["step"] = *rank.step;
  if (!rank.no_frames.empty()) json["no_stack"] = rank.no_frames;
  return json;
}

Json ToJson(const std::vector<StackGroup>& groups) {
  Json json = Json::array();
  for (const StackGroup& group : groups) {
    json.push_back({{"ranks", group.ranks}, {"frames", group.frames}});
  }
  return json;
}

Json ToJson(const std::vector<hangs::Call>& calls) {
  Json out = Json::array();
  for (const hangs::Call& call : calls) {
    out.push_back({{"ranks", call.ranks},
                   {"operation", ToJson(call.operation, call.label)},
                   {"asked_before_ms", absl::ToInt64Milliseconds(call.age)}});
  }
  return out;
}

std::string Print(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string NetworkInWords(const std::vector<std::string>& faults) {
  std::string text;
  for (const std::string& fault : faults) absl::StrAppend(&text, "network: ", fault, "\n");
  return text;
}

std::string InWords(const Incident& incident) {
  std::string text = absl::StrCat(NetworkInWords(incident.network_faults),
                                  "hang: ", incident.diagnosis.Describe(), "; ", incident.reason);
  if (incident.diagnosis.cause != hangs::Cause::kUnknown) {
    absl::StrAppend(&text, "\n  cause: ", hangs::InWords(incident.diagnosis.cause), " (",
                    hangs::ToString(incident.diagnosis.cause), ")");
  }
  size_t named = 0;
  for (const bool culprits : {true, false}) {
    for (const RankReport& rank : incident.ranks) {
      if (IsCulprit(incident, rank.rank) != culprits || named == kRanksInWords) continue;
      ++named;
      absl::StrAppend(&text, "\n  ", hangs::InWords(rank));
    }
  }
  for (const StackGroup& group : MergeStacks(incident.ranks, &RankReport::python)) {
    absl::StrAppend(&text, "\n  ", RanksInWords(group.ranks), " in ",
                    hangs::PythonInWords(group.frames));
  }
  for (const StackGroup& group : MergeStacks(incident.ranks)) {
    absl::StrAppend(&text, "\n  ", RanksInWords(group.ranks), " in ",
                    absl::StrJoin(TellingFrames(group.frames), " < "));
  }
  const std::string detection = DetectionInWords(incident);
  if (!detection.empty()) absl::StrAppend(&text, "\n  ", detection);
  if (!incident.timeline.empty()) absl::StrAppend(&text, "\n  ", TimelineInWords(incident));
  absl::StrAppend(&text, "\n  ", incident.action);
  return text;
}

bool HasReached(const Incident& incident, absl::string_view milestone) {
  return std::any_of(incident.timeline.begin(), incident.timeline.end(),
                     [&](const Incident::Milestone& each) { return each.what == milestone; });
}

std::string TimelineInWords(const Incident& incident) {
  std::vector<std::string> parts;
  for (const Incident::Milestone& milestone : incident.timeline) {
    parts.push_back(absl::StrCat(absl::StrReplaceAll(milestone.what, {{"_", " "}}), " ",
                                 absl::ToInt64Milliseconds(milestone.after)));
  }
  return absl::StrCat("timeline in ms: ", absl::StrJoin(parts, ", "));
}

std::string ToJson(const Incident& incident) {
  const hangs::Diagnosis& diagnosis = incident.diagnosis;
  Json json = {
      {"schema", kIncidentSchema},
      {"kind", "hang"},
      {"run_id", incident.run_id},
      {"node", incident.node},
      {"round", incident.round.value()},
      {"restart_count", incident.restart_count},
      {"decided_at", absl::FormatTime(absl::RFC3339_sec, incident.decided_at, absl::UTCTimeZone())},
      {"text", diagnosis.Describe()},
      {"reason", incident.reason},
      {"action", incident.action}};
  if (!incident.network_faults.empty()) json["network"] = incident.network_faults;
  json["verdict"] = VerdictToJson(diagnosis);
  json["detected_by"] = Json::array();
  for (const auto& [told_by, ranks] : Detectors(incident)) {
    json["detected_by"].push_back(
        {{"silence_on", std::string(hangs::ToString(told_by))}, {"ranks", ranks}});
  }
  json["ranks"] = Json::array();
  for (const RankReport& rank : incident.ranks) json["ranks"].push_back(ToJson(rank));
  json["stacks"] = ToJson(MergeStacks(incident.ranks));
  json["python_stacks"] = ToJson(MergeStacks(incident.ranks, &RankReport::python));
  json["timeline_ms"] = Json::object();
  for (const Incident::Milestone& milestone : incident.timeline) {
    json["timeline_ms"][milestone.what] = absl::ToInt64Milliseconds(milestone.after);
  }
  return Print(json);
}

std::string ToJson(const AbortIncident& incident) {
  const hangs::AbortReport& report = incident.report;
  return Print(
      {{"schema", kIncidentSchema},
       {"kind", "abort"},
       {"run_id", incident.run_id},
       {"node", incident.node},
       {"round", incident.round.value()},
       {"restart_count", incident.restart_count},
       {"said_at", absl::FormatTime(absl::RFC3339_sec, incident.said_at, absl::UTCTimeZone())},
       {"text", hangs::InWords(report)},
       {"aborted", report.aborted},
       {"differences", ToJson(report.differences)},
       {"last_calls", ToJson(report.last)},
       {"not_known", report.unknown}});
}

}  // namespace muster::agent
