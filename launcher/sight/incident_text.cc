#include "launcher/sight/incident_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "launcher/sight/status_text.h"
#include "nlohmann/json.hpp"
#include "proto/base/bounded_json.h"
#include "proto/base/status_macros.h"
#include "proto/base/words.h"

namespace muster::launcher {
namespace {

using Json = nlohmann::json;

constexpr size_t kFramesShown = 8;
constexpr size_t kRanksShown = 16;

std::string Text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t Number(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : -1;
}

const Json& Part(const Json& json, const char* key) {
  static const Json kNone;
  const auto found = json.find(key);
  return found == json.end() ? kNone : *found;
}

std::vector<int> Ranks(const Json& json, const char* key) {
  std::vector<int> ranks;
  for (const Json& rank : Part(json, key)) {
    if (rank.is_number_integer()) ranks.push_back(rank.get<int>());
  }
  return ranks;
}

absl::StatusOr<Json> Parse(absl::string_view text) {
  Json json = ParseJsonFromOutside(text);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("this is not a JSON object, and so not an incident file");
  }
  const std::string kind = Text(json, "kind");
  if (kind != "hang" && kind != "abort") {
    return absl::InvalidArgumentError(
        "this is not an incident file: its kind is neither hang nor abort");
  }
  if (const int64_t schema = Number(json, "schema"); schema != kIncidentSchema) {
    return absl::InvalidArgumentError(absl::StrCat("this incident file has schema ", schema,
                                                   ", and this version of muster knows ",
                                                   kIncidentSchema));
  }
  return json;
}

void AddParagraph(const std::string& text, std::string& out) {
  absl::StrAppend(&out, out.empty() ? "" : "\n", Wrapped(ForTerminal(text), kTextColumns, ""),
                  "\n");
}

// Ends with one full stop, also where it has one.
std::string Sentence(const std::string& text) {
  return absl::StrCat(absl::StripSuffix(text, "."), ".");
}

std::string WhereItWas(const Json& json) {
  std::string where = absl::StrCat("round ", Number(json, "round"));
  const int64_t restarts = Number(json, "restart_count");
  if (restarts > 0) {
    absl::StrAppend(&where, ", after ", restarts, restarts == 1 ? " restart" : " restarts");
  }
  return where;
}

std::string RankInWords(const Json& rank) {
  std::string text = absl::StrCat("Rank ", Number(rank, "rank"));
  if (const std::string node = Text(rank, "node"); !node.empty()) {
    absl::StrAppend(&text, " on ", node);
  }
  absl::StrAppend(&text, " (pid ", Number(rank, "pid"), ")");
  if (const std::string phase = Text(rank, "phase"); !phase.empty()) {
    absl::StrAppend(&text, " was ", phase);
  }
  const Json& silent = Part(rank, "silent_s");
  if (silent.is_number()) {
    absl::StrAppend(&text, "; it had not moved for ", ShortTime(silent.get<double>()));
  }
  if (const std::string doing = Text(rank, "doing"); !doing.empty()) {
    absl::StrAppend(&text, ": ", doing);
  }
  return Sentence(text);
}

void AddStacks(const Json& json, const char* key, const char* what, std::string& out) {
  for (const Json& group : Part(json, key)) {
    const Json& frames = Part(group, "frames");
    if (!frames.is_array() || frames.empty()) continue;
    absl::StrAppend(&out, "\n", what, " of ", RanksInWords(Ranks(group, "ranks")),
                    ", innermost first:\n");
    const size_t shown = std::min(frames.size(), kFramesShown);
    for (size_t i = 0; i < shown; ++i) {
      if (frames[i].is_string()) {
        absl::StrAppend(&out, "  ", ForTerminal(frames[i].get<std::string>()), "\n");
      }
    }
    if (shown < frames.size()) {
      absl::StrAppend(&out, "  and ", frames.size() - shown, " more in the file\n");
    }
  }
}

void AddRanksOfVerdict(const Json& verdict, std::string& out) {
  const std::vector<int> culprits = Ranks(verdict, "culprits");
  const std::vector<int> waiting = Ranks(verdict, "waiting");
  if (!culprits.empty()) {
    AddParagraph(
        absl::StrCat(
            "At fault: ", RanksInWords(culprits), ".",
            waiting.empty() ? "" : absl::StrCat(" Waiting for it: ", RanksInWords(waiting), ".")),
        out);
  } else if (!waiting.empty()) {
    AddParagraph(absl::StrCat("No rank at fault is known; waiting: ", RanksInWords(waiting), "."),
                 out);
  }
}

// `after_ms` has the milliseconds since the silence was detected, by what came then.
void AddTimeline(const Json& after_ms, std::string& out) {
  std::string times;
  for (const auto& [what, after] : after_ms.items()) {
    if (!after.is_number()) continue;
    absl::StrAppend(&times, times.empty() ? "" : ", ", absl::StrReplaceAll(what, {{"_", " "}}), " ",
                    absl::StrFormat("%.1f s", after.get<double>() / 1000));
  }
  if (!times.empty()) {
    AddParagraph(absl::StrCat("Times since the silence was detected: ", times, "."), out);
  }
}

void AddEachRank(const Json& all, std::string& out) {
  std::vector<Json> ranks;
  if (all.is_array()) ranks = all.get<std::vector<Json>>();
  for (size_t i = 0; i < std::min(ranks.size(), kRanksShown); ++i) {
    AddParagraph(RankInWords(ranks[i]), out);
  }
  if (ranks.size() > kRanksShown) {
    AddParagraph(absl::StrCat(ranks.size() - kRanksShown, " more ranks are in the file."), out);
  }
}

std::string ExplainHang(const Json& json) {
  const Json& verdict = Part(json, "verdict");
  std::string out;
  AddParagraph(
      absl::StrCat("Job ", Text(json, "run_id"), " hung in ", WhereItWas(json), ". Decided at ",
                   Text(json, "decided_at"), ", written by ", Text(json, "node"), "."),
      out);
  AddParagraph(absl::StrCat("What it was: ", Sentence(Text(json, "text")),
                            " Why it counts as a hang: ", Sentence(Text(json, "reason"))),
               out);
  if (const std::string cause = Text(verdict, "cause_in_words"); !cause.empty()) {
    AddParagraph(absl::StrCat("The cause: ", Sentence(cause)), out);
  }
  AddRanksOfVerdict(verdict, out);
  AddParagraph(absl::StrCat("What followed: ", Sentence(Text(json, "action"))), out);
  AddTimeline(Part(json, "timeline_ms"), out);
  AddEachRank(Part(json, "ranks"), out);
  AddStacks(json, "python_stacks", "Python", out);
  AddStacks(json, "stacks", "Native stack", out);
  return out;
}

// "all_reduce of 4096 bytes of float32, number 7 of group default_pg".
std::string CallInWords(const Json& call) {
  const Json& op = Part(call, "operation");
  std::string text = Text(op, "kind");
  if (const int64_t bytes = Number(op, "bytes"); bytes > 0) {
    absl::StrAppend(&text, " of ", bytes, " bytes");
  }
  if (const std::string dtype = Text(op, "dtype"); !dtype.empty()) {
    absl::StrAppend(&text, " of ", dtype);
  }
  absl::StrAppend(&text, ", number ", Number(op, "sequence"));
  if (const std::string group = Text(op, "group"); !group.empty()) {
    absl::StrAppend(&text, " of group ", group);
  }
  return text;
}

void AddCalls(const Json& calls, const char* what, std::string& out) {
  for (const Json& call : calls) {
    AddParagraph(
        absl::StrCat(what, RanksInWords(Ranks(call, "ranks")), " called ", CallInWords(call), "."),
        out);
  }
}

std::string ExplainAbort(const Json& json) {
  std::string out;
  AddParagraph(
      absl::StrCat("A rank of job ", Text(json, "run_id"), " aborted in ", WhereItWas(json),
                   ". Said at ", Text(json, "said_at"), ", written by ", Text(json, "node"), "."),
      out);
  AddParagraph(absl::StrCat("What it was: ", Sentence(Text(json, "text"))), out);
  if (const std::vector<int> aborted = Ranks(json, "aborted"); !aborted.empty()) {
    AddParagraph(absl::StrCat("Aborted: ", RanksInWords(aborted), "."), out);
  }
  const Json& differences = Part(json, "differences");
  if (differences.is_array() && !differences.empty()) {
    AddParagraph(
        "The calls differ, which ends programs of PyTorch: this is to be mended in the "
        "program.",
        out);
  }
  AddCalls(differences, "Where they differ, ", out);
  AddCalls(Part(json, "last_calls"), "Last of all ", out);
  if (const std::vector<int> unknown = Ranks(json, "not_known"); !unknown.empty()) {
    AddParagraph(absl::StrCat("Not known: what ", RanksInWords(unknown), " called."), out);
  }
  return out;
}

}  // namespace

absl::StatusOr<IncidentSummary> SummaryOfIncident(absl::string_view text) {
  MUSTER_ASSIGN_OR_RETURN(const Json json, Parse(text));
  const bool is_hang = Text(json, "kind") == "hang";
  return IncidentSummary{.kind = Text(json, "kind"),
                         .at = Text(json, is_hang ? "decided_at" : "said_at"),
                         .node = Text(json, "node"),
                         .round = Number(json, "round"),
                         .text = Text(json, "text"),
                         .cause = Text(Part(json, "verdict"), "cause_in_words"),
                         .action = Text(json, "action")};
}

absl::StatusOr<std::string> ExplainIncident(absl::string_view text) {
  MUSTER_ASSIGN_OR_RETURN(const Json json, Parse(text));
  return Text(json, "kind") == "hang" ? ExplainHang(json) : ExplainAbort(json);
}

}  // namespace muster::launcher
