#include "launcher/sight/report_text.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "launcher/sight/status_text.h"
#include "proto/base/words.h"

namespace muster::launcher {
namespace {

using status::Spent;

constexpr size_t kReportColumns = 96;

std::string Counted(size_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

void AddItem(const std::string& text, std::string& out) {
  absl::StrAppend(&out, "  ", Wrapped(ForTerminal(text), kReportColumns - 2, "      "), "\n");
}

// `lines` of them at most, under their title; nothing where there is none.
void AddSection(const std::string& title, const std::vector<std::string>& items, std::string& out) {
  if (items.empty()) return;
  absl::StrAppend(&out, "\n", title, "\n");
  for (size_t i = 0; i < std::min(items.size(), kReportLinesMax); ++i) AddItem(items[i], out);
  if (items.size() > kReportLinesMax) {
    AddItem(absl::StrCat("and ", items.size() - kReportLinesMax, " more"), out);
  }
}

std::string Brief(double seconds) {
  if (seconds >= 10) return ShortTime(seconds);
  return absl::StrFormat("%.*fs", seconds < 1 ? 2 : 1, seconds);
}

std::string At(double at) { return absl::StrCat("+", ShortTime(at)); }

std::vector<std::string> RoundLines(const JobHistory& job) {
  std::vector<std::string> lines;
  for (const RoundHistory& round : job.rounds) {
    std::string line = absl::StrCat(At(round.from), "  round ", round.round, ": ",
                                    Counted(round.shape.num_nodes, "node"), ", ",
                                    Counted(round.shape.world_size, "rank"));
    const std::string starts = StartsInWords(round);
    if (!starts.empty()) absl::StrAppend(&line, " (", starts, ")");
    absl::StrAppend(&line, ", ran for ", ShortTime(round.ran));
    if (round.step >= 0) absl::StrAppend(&line, ", to step ", round.step);
    if (round.step > round.slowest_step && round.slowest_rank >= 0) {
      absl::StrAppend(&line, " (rank ", round.slowest_rank, " to ", round.slowest_step, ")");
    }
    const bool is_last = &round == &job.rounds.back();
    if (!round.ended_by.empty() && !(is_last && job.end && job.end->entry.exit_code == 0)) {
      absl::StrAppend(&line, "; ended by ", round.ended_by);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> EventLines(const std::vector<JobEvent>& events) {
  std::vector<std::string> lines;
  for (const JobEvent& event : events) {
    lines.push_back(absl::StrCat(At(event.at), "  ", event.entry.text));
  }
  return lines;
}

std::vector<std::string> FailureLines(const JobHistory& job) {
  std::vector<std::string> lines;
  for (const JobEvent& event : EventsOf(job, {status::kFailure})) {
    lines.push_back(
        absl::StrCat(At(event.at), "  round ", event.entry.round, ", ", FailureInWords(event)));
  }
  return lines;
}

std::vector<std::string> IncidentLines(const JobHistory& job) {
  std::vector<std::string> lines;
  for (const IncidentSummary& incident : job.incidents) {
    std::string line =
        absl::StrCat(incident.kind, " in round ", incident.round, ": ", incident.text);
    if (!incident.cause.empty()) absl::StrAppend(&line, "; cause: ", incident.cause);
    if (!incident.action.empty()) absl::StrAppend(&line, "; ", incident.action);
    lines.push_back(absl::StrCat(line, " (muster explain ", incident.file, ")"));
  }
  return lines;
}

std::vector<std::string> NodeLines(const JobHistory& job) {
  std::vector<std::string> lines;
  for (const NodeHistory& node : job.nodes) {
    if (node.has_end) continue;
    lines.push_back(absl::StrCat(node.node, ": its diary breaks off at ", At(node.ended),
                                 "; its agent was killed, or still runs"));
  }
  return lines;
}

}  // namespace

std::string OutcomeInWords(const JobHistory& job) {
  const std::string after = absl::StrCat(" after ", ShortTime(job.seconds));
  if (!job.end) return absl::StrCat("has no end", after, ": it runs, or its agents were killed");
  const status::DiaryEntry& end = job.end->entry;
  if (end.exit_code == 0) return absl::StrCat("ended well", after);
  return absl::StrCat("ended with exit code ", end.exit_code, after,
                      end.text.empty() ? "" : absl::StrCat(": ", end.text));
}

std::string TimeInWords(const JobHistory& job, double at) {
  const absl::Time time = absl::FromUnixMillis(job.began_unix_millis) + absl::Seconds(at);
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string StartsInWords(const RoundHistory& round) {
  if (round.back_after < 0) return "";
  std::string words;
  for (const auto& [count, how] :
       {std::pair(round.starts.kept, " kept"), std::pair(round.starts.forked, " forked"),
        std::pair(round.starts.fresh, " fresh")}) {
    if (count > 0) absl::StrAppend(&words, words.empty() ? "" : ", ", count, how);
  }
  if (!round.why_afresh.empty()) absl::StrAppend(&words, " because ", round.why_afresh);
  return absl::StrCat(words, ", back after ", Brief(round.back_after));
}

std::vector<std::string> LostInWords(const JobHistory& job) {
  std::vector<std::pair<double, Spent>> lost;
  for (const Spent spent : status::kAllSpent) {
    const double seconds = job.spent_seconds[static_cast<size_t>(spent)] /
                           static_cast<double>(std::max<size_t>(job.nodes.size(), 1));
    if (spent != Spent::kRunning && seconds >= 0.05) lost.emplace_back(seconds, spent);
  }
  absl::c_stable_sort(lost, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> words;
  for (const auto& [seconds, spent] : lost) {
    words.push_back(absl::StrCat(ToString(spent), " ", Brief(seconds)));
  }
  return words;
}

std::vector<JobEvent> EventsOf(const JobHistory& job, const std::vector<std::string>& kinds) {
  std::vector<JobEvent> events;
  for (const JobEvent& event : job.events) {
    if (!absl::c_linear_search(kinds, event.entry.what)) continue;
    // What the server says, every node writes.
    const bool is_known = absl::c_any_of(events, [&](const JobEvent& other) {
      return event.entry.what != status::kFailure && other.entry.text == event.entry.text &&
             other.entry.what == event.entry.what && other.node != event.node;
    });
    if (!is_known) events.push_back(event);
  }
  return events;
}

std::string ReportText(const JobHistory& job) {
  int ranks = 0;
  for (const RoundHistory& round : job.rounds) ranks = std::max(ranks, round.shape.world_size);
  std::string out;
  absl::StrAppend(&out,
                  Wrapped(ForTerminal(absl::StrCat("job ", job.run_id, " ", OutcomeInWords(job))),
                          kReportColumns, "    "),
                  "\n");
  AddItem(absl::StrCat(Counted(job.nodes.size(), "node"), ", ", Counted(ranks, "rank"), ", ",
                       TimeInWords(job, 0), " to ", TimeInWords(job, job.seconds)),
          out);
  AddItem(absl::StrFormat("goodput %.1f %%: the share of the nodes' time in which workers ran and "
                          "no rank hung",
                          100 * job.goodput()),
          out);
  const std::vector<std::string> lost = LostInWords(job);
  if (!lost.empty()) AddItem(absl::StrCat("lost, of each node: ", absl::StrJoin(lost, ", ")), out);
  AddSection("rounds", RoundLines(job), out);
  AddSection("failures", FailureLines(job), out);
  AddSection("hangs and aborts", IncidentLines(job), out);
  AddSection("ranks that were waited for",
             EventLines(EventsOf(job, {status::kNotice, status::kVerdict, status::kGoesOn})), out);
  AddSection("slow ranks", EventLines(EventsOf(job, {status::kSlow})), out);
  AddSection("nodes without an end", NodeLines(job), out);
  return out;
}

}  // namespace muster::launcher
