#include "launcher/sight/report_html.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "launcher/sight/report_text.h"
#include "launcher/sight/status_text.h"

namespace muster::launcher {
namespace {

using status::Spent;

constexpr size_t kRowsMax = 500;

constexpr char kStyle[] =
    "body{font:14px/1.45 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;"
    "color:#222;background:#fff}h1{font-size:1.4em}h2{font-size:1.1em;margin-top:1.6em}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;"
    "padding:.25em .8em .25em 0;border-bottom:1px solid #ddd}"
    ".life{position:relative;height:1.4em;background:#f4f4f4;margin:.15em 0}"
    ".life span{position:absolute;top:0;bottom:0;min-width:1px}"
    ".key span{display:inline-block;width:1em;height:1em;vertical-align:-.15em;margin:0 .3em 0 1em}"
    "code{background:#f4f4f4;padding:0 .2em}";

// Told apart also by those who see few colours: by how light they are.
const char* ColourOf(Spent spent) {
  switch (spent) {
    case Spent::kForming:
      return "#bcd2e8";
    case Spent::kPreparing:
      return "#8fb3d6";
    case Spent::kRunning:
      return "#2f7d4f";
    case Spent::kHung:
      return "#b3261e";
    case Spent::kWaiting:
      return "#e6c35c";
    case Spent::kStopping:
      return "#e08a3c";
    case Spent::kEnding:
      return "#999999";
  }
  return "";
}

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string TableRow(const std::vector<std::string>& cells, const char* tag = "td") {
  std::string row = "<tr>";
  for (const std::string& cell : cells) {
    absl::StrAppend(&row, "<", tag, ">", Escaped(cell), "</", tag, ">");
  }
  return absl::StrCat(row, "</tr>\n");
}

void AddTable(const char* title, const std::vector<std::string>& heads,
              const std::vector<std::vector<std::string>>& rows, std::string& out) {
  if (rows.empty()) return;
  absl::StrAppend(&out, "<h2>", title, "</h2>\n<table>\n", TableRow(heads, "th"));
  for (size_t i = 0; i < std::min(rows.size(), kRowsMax); ++i)
    absl::StrAppend(&out, TableRow(rows[i]));
  absl::StrAppend(&out, "</table>\n");
  if (rows.size() > kRowsMax) {
    absl::StrAppend(&out, "<p>and ", rows.size() - kRowsMax, " more</p>\n");
  }
}

// One bar a node, and what its colours mean.
void AddLives(const JobHistory& job, std::string& out) {
  absl::StrAppend(&out, "<h2>Nodes</h2>\n<p class=\"key\">");
  for (const Spent spent : status::kAllSpent) {
    absl::StrAppend(&out, "<span style=\"background:", ColourOf(spent), "\"></span>",
                    ToString(spent));
  }
  absl::StrAppend(&out, "</p>\n");
  const double all = std::max(job.seconds, 1e-3);
  for (const NodeHistory& node : job.nodes) {
    absl::StrAppend(&out, "<div>", Escaped(node.node), ", ranks ",
                    RankRange(node.first_rank, node.num_ranks),
                    node.has_end ? "" : ", its diary breaks off", "</div>\n<div class=\"life\">");
    size_t shown = 0;
    for (const TimeSlice& slice : node.slices) {
      if (++shown > kRowsMax) break;
      absl::StrAppendFormat(&out,
                            "<span style=\"left:%.3f%%;width:%.3f%%;background:%s\" title=\"%s, %s "
                            "from +%s\"></span>",
                            100 * slice.from / all, 100 * (slice.to - slice.from) / all,
                            ColourOf(slice.spent), ToString(slice.spent),
                            ShortTime(slice.to - slice.from), ShortTime(slice.from));
    }
    absl::StrAppend(&out, "</div>\n");
  }
}

void AddRounds(const JobHistory& job, std::string& out) {
  std::vector<std::vector<std::string>> rows;
  for (const RoundHistory& round : job.rounds) {
    rows.push_back({absl::StrCat(round.round), absl::StrCat("+", ShortTime(round.from)),
                    ShortTime(round.ran), absl::StrCat(round.shape.num_nodes),
                    absl::StrCat(round.shape.world_size), StartsInWords(round),
                    round.step < 0 ? "" : absl::StrCat(round.step), round.ended_by});
  }
  AddTable("Rounds",
           {"round", "from", "ran for", "nodes", "ranks", "workers", "to step", "ended by"}, rows,
           out);
}

void AddEvents(const char* title, const std::vector<JobEvent>& events, std::string& out) {
  std::vector<std::vector<std::string>> rows;
  for (const JobEvent& event : events) {
    const bool is_failure = event.entry.what == status::kFailure;
    rows.push_back({absl::StrCat("+", ShortTime(event.at)), absl::StrCat(event.entry.round),
                    is_failure ? FailureInWords(event) : event.entry.text});
  }
  AddTable(title, {"at", "round", "what"}, rows, out);
}

}  // namespace

std::string ReportHtml(const JobHistory& job) {
  const std::string title = absl::StrCat("job ", job.run_id, " ", OutcomeInWords(job));
  std::string out = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>",
      Escaped(title), "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n<h1>",
      Escaped(title), "</h1>\n<p>", TimeInWords(job, 0), " to ", TimeInWords(job, job.seconds),
      "</p>\n<p>Goodput ", absl::StrFormat("%.1f", 100 * job.goodput()),
      " %: the share of the nodes' time in which workers ran and no rank hung.");
  const std::vector<std::string> lost = LostInWords(job);
  if (!lost.empty()) {
    absl::StrAppend(&out, " Lost, of each node: ", absl::StrJoin(lost, ", "), ".");
  }
  absl::StrAppend(&out, "</p>\n");
  AddLives(job, out);
  AddRounds(job, out);
  AddEvents("Failures", EventsOf(job, {status::kFailure}), out);
  std::vector<std::vector<std::string>> incidents;
  for (const IncidentSummary& incident : job.incidents) {
    incidents.push_back({incident.kind, absl::StrCat(incident.round), incident.text, incident.cause,
                         incident.action, incident.file});
  }
  AddTable("Hangs and aborts", {"kind", "round", "what", "cause", "what followed", "file"},
           incidents, out);
  AddEvents("Ranks that were waited for",
            EventsOf(job, {status::kNotice, status::kVerdict, status::kGoesOn}), out);
  AddEvents("Slow ranks", EventsOf(job, {status::kSlow}), out);
  absl::StrAppend(&out, "</body>\n</html>\n");
  return out;
}

}  // namespace muster::launcher
