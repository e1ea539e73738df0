// What happened in a job: the diaries of its nodes (rendezvous/status/diary.h) put together, on one
// clock. Shown as text, HTML and a trace (report_text.h, report_html.h, report_trace.h).
//
// Pure values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/sight/incident_text.h"
#include "rendezvous/status/diary.h"

namespace muster::launcher {

// What was read of one node.
struct NodeFiles {
  std::string diary;                       // its lines
  std::vector<IncidentSummary> incidents;  // of its folder
};

// Times are seconds since the job's first node began.
struct TimeSlice {
  status::Spent spent = status::Spent::kForming;
  double from = 0;
  double to = 0;
};

struct NodeHistory {
  std::string node;
  double began = 0;
  double ended = 0;
  bool has_end = false;  // else the diary breaks off: it was killed, or goes on
  std::vector<TimeSlice> slices;
  int first_rank = -1;  // of its last round
  int num_ranks = 0;
};

// An entry, and whose it is.
struct JobEvent {
  double at = 0;
  std::string node;
  status::DiaryEntry entry;
};

struct RoundHistory {
  int64_t round = -1;
  int restart_count = 0;
  status::RoundShape shape;  // as one of its nodes tells it
  double from = 0;
  double to = 0;                // the next round, or the end
  status::WorkerStarts starts;  // of all nodes
  std::string why_afresh;       // some started afresh, though they were to be forked
  double back_after = -1;       // seconds from the break of the round before until all ran
  double ran = 0;               // time in which workers ran, of the node where that was longest
  int64_t step = -1;            // of the furthest rank as it ended
  int64_t slowest_step = -1;    // of the last
  int slowest_rank = -1;
  std::string ended_by;
};

struct JobHistory {
  std::string run_id;
  int64_t began_unix_millis = 0;
  double seconds = 0;
  std::vector<NodeHistory> nodes;  // by first rank
  std::vector<RoundHistory> rounds;
  std::vector<JobEvent> events;  // by time
  // Summed over nodes.
  std::array<double, status::kAllSpent.size()> spent_seconds = {};
  double node_seconds = 0;
  std::optional<JobEvent> end;             // of the node that heard of it first
  std::vector<IncidentSummary> incidents;  // each once, though every node writes it

  // The share of their time in which the nodes' workers ran and nobody hung.
  double goodput() const {
    const double ran = spent_seconds[static_cast<size_t>(status::Spent::kRunning)];
    return node_seconds > 0 ? ran / node_seconds : 0;
  }
};

// Errors: kInvalidArgument: a diary of another schema. kNotFound: no diary has an entry.
absl::StatusOr<JobHistory> MakeHistory(const std::vector<NodeFiles>& nodes);

// "rank 3 on node2: exit code 7: ValueError: bad batch".
std::string FailureInWords(const JobEvent& event);

}  // namespace muster::launcher
