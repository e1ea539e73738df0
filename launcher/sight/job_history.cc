#include "launcher/sight/job_history.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

using status::DiaryEntry;
using status::Spent;

std::string FirstLine(const std::string& text) {
  return std::string(*absl::StrSplit(text, '\n').begin());
}

// "Traceback (most recent call last):" tells nobody anything; the exception is at its end.
std::string TellingLine(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  if (lines.empty()) return "";
  return absl::StrContains(lines.front(), "Traceback") ? lines.back() : lines.front();
}

NodeHistory NodeOf(const std::vector<DiaryEntry>& diary, int64_t began_unix_millis) {
  NodeHistory node;
  node.began = static_cast<double>(diary.front().unix_millis - began_unix_millis) / 1000;
  for (const DiaryEntry& entry : diary) {
    const double at = node.began + entry.after_seconds;
    if (entry.what == status::kBegan) node.node = entry.node;
    if (entry.what == status::kRound) {
      node.first_rank = entry.shape.first_rank;
      node.num_ranks = entry.shape.num_ranks;
    }
    node.has_end = node.has_end || entry.what == status::kEnd;
    node.ended = std::max(node.ended, at);
    if (!node.slices.empty()) node.slices.back().to = node.ended;
    if (entry.what != status::kTurned) continue;
    const std::optional<Spent> spent = status::ParseSpent(entry.spent);
    if (spent) node.slices.push_back({.spent = *spent, .from = at, .to = at});
  }
  return node;
}

// Two agents on one machine are two nodes of one name.
std::string NameAmong(const std::vector<NodeHistory>& nodes, const std::string& name) {
  const auto same = std::count_if(nodes.begin(), nodes.end(), [&](const NodeHistory& other) {
    return other.node == name || absl::StartsWith(other.node, absl::StrCat(name, " ("));
  });
  return same == 0 ? name : absl::StrCat(name, " (", same + 1, ")");
}

double TimeIn(const NodeHistory& node, Spent spent, double from, double to) {
  double time = 0;
  for (const TimeSlice& slice : node.slices) {
    if (slice.spent != spent) continue;
    time += std::max(0.0, std::min(slice.to, to) - std::max(slice.from, from));
  }
  return time;
}

void SetSteps(const std::map<int, int64_t>& last_of_rank, RoundHistory& round) {
  for (const auto& [rank, step] : last_of_rank) {
    round.step = std::max(round.step, step);
    if (round.slowest_rank >= 0 && step >= round.slowest_step) continue;
    round.slowest_step = step;
    round.slowest_rank = rank;
  }
}

// The first failure says more than what the agents say of it.
std::string EndOf(const RoundHistory& round, const std::vector<JobEvent>& events) {
  std::string said;
  for (const JobEvent& event : events) {
    if (event.entry.round != round.round) continue;
    if (event.entry.what == status::kFailure) return FailureInWords(event);
    if (event.entry.what == status::kSaid && said.empty()) said = FirstLine(event.entry.text);
  }
  return said;
}

// When the first worker failed, or, where none had, the first node no longer ran.
double BrokeOffAt(const RoundHistory& round, const JobHistory& job) {
  double at = round.to;
  for (const JobEvent& event : job.events) {
    const bool is_its = event.entry.round == round.round;
    if (is_its && event.entry.what == status::kFailure) at = std::min(at, event.at);
  }
  for (const NodeHistory& node : job.nodes) {
    double ran_to = -1;
    for (const TimeSlice& slice : node.slices) {
      const bool ran = slice.spent == Spent::kRunning || slice.spent == Spent::kHung;
      if (ran && slice.from < round.to && slice.to > round.from) ran_to = slice.to;
    }
    if (ran_to >= 0) at = std::min(at, ran_to);
  }
  return at;
}

std::vector<RoundHistory> RoundsOf(const JobHistory& job) {
  std::map<int64_t, RoundHistory> rounds;
  std::map<int64_t, std::map<int, int64_t>> steps;  // by round and rank: the last that was told
  std::map<int64_t, double> started_at;             // by round: on the last of its nodes
  for (const JobEvent& event : job.events) {
    if (event.entry.what == status::kRound) {
      const bool is_first = !rounds.contains(event.entry.round);
      RoundHistory& round = rounds[event.entry.round];
      round.round = event.entry.round;
      round.restart_count = event.entry.restart_count;
      round.shape = event.entry.shape;
      if (is_first) round.from = event.at;
    } else if (event.entry.what == status::kStarted) {
      RoundHistory& round = rounds[event.entry.round];
      round.starts.kept += event.entry.starts.kept;
      round.starts.forked += event.entry.starts.forked;
      round.starts.fresh += event.entry.starts.fresh;
      if (round.why_afresh.empty()) round.why_afresh = event.entry.text;
      started_at[event.entry.round] = event.at;
    } else if (event.entry.what == status::kSteps) {
      for (const status::StepOfRank& told : event.entry.steps) {
        steps[event.entry.round][told.rank] = told.step;
      }
    }
  }
  std::vector<RoundHistory> out;
  for (auto it = rounds.begin(); it != rounds.end(); ++it) {
    RoundHistory round = it->second;
    SetSteps(steps[round.round], round);
    const auto next = std::next(it);
    round.to = next == rounds.end() ? job.seconds : next->second.from;
    for (const NodeHistory& node : job.nodes) {
      round.ran = std::max(round.ran, TimeIn(node, Spent::kRunning, round.from, round.to) +
                                          TimeIn(node, Spent::kHung, round.from, round.to));
    }
    round.ended_by = EndOf(round, job.events);
    if (!out.empty() && round.starts.sum() > 0) {
      round.back_after = started_at[round.round] - BrokeOffAt(out.back(), job);
    }
    out.push_back(std::move(round));
  }
  return out;
}

}  // namespace

std::string FailureInWords(const JobEvent& event) {
  const DiaryEntry& entry = event.entry;
  const std::string how = entry.signal != 0 ? absl::StrCat("signal ", entry.signal)
                                            : absl::StrCat("exit code ", entry.exit_code);
  const std::string why = TellingLine(entry.text);
  return absl::StrCat("rank ", entry.rank, " on ", event.node, ": ", how,
                      why.empty() ? "" : absl::StrCat(": ", why));
}

absl::StatusOr<JobHistory> MakeHistory(const std::vector<NodeFiles>& nodes) {
  JobHistory job;
  std::vector<std::vector<DiaryEntry>> diaries;
  std::set<std::string> told;
  for (const NodeFiles& files : nodes) {
    MUSTER_ASSIGN_OR_RETURN(std::vector<DiaryEntry> diary, status::ParseDiary(files.diary));
    for (const IncidentSummary& incident : files.incidents) {
      // Every node writes the verdict of all.
      if (told.insert(absl::StrCat(incident.round, incident.kind, incident.text)).second) {
        job.incidents.push_back(incident);
      }
    }
    if (diary.empty() || diary.front().what != status::kBegan) continue;
    const int64_t began = diary.front().unix_millis;
    if (diaries.empty() || began < job.began_unix_millis) job.began_unix_millis = began;
    job.run_id = diary.front().run_id;
    diaries.push_back(std::move(diary));
  }
  if (diaries.empty()) return absl::NotFoundError("no diary says anything");
  for (const std::vector<DiaryEntry>& diary : diaries) {
    NodeHistory node = NodeOf(diary, job.began_unix_millis);
    node.node = NameAmong(job.nodes, node.node);
    for (const DiaryEntry& entry : diary) {
      job.events.push_back({node.began + entry.after_seconds, node.node, entry});
    }
    job.seconds = std::max(job.seconds, node.ended);
    for (const Spent spent : status::kAllSpent) {
      const double time = TimeIn(node, spent, node.began, node.ended);
      job.spent_seconds[static_cast<size_t>(spent)] += time;
      job.node_seconds += time;
    }
    job.nodes.push_back(std::move(node));
  }
  std::stable_sort(job.events.begin(), job.events.end(),
                   [](const JobEvent& a, const JobEvent& b) { return a.at < b.at; });
  std::stable_sort(
      job.nodes.begin(), job.nodes.end(),
      [](const NodeHistory& a, const NodeHistory& b) { return a.first_rank < b.first_rank; });
  for (const JobEvent& event : job.events) {
    if (event.entry.what == status::kEnd && !job.end) job.end = event;
  }
  job.rounds = RoundsOf(job);
  return job;
}

}  // namespace muster::launcher
