#include "launcher/sight/report_trace.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "launcher/sight/status_text.h"
#include "nlohmann/json.hpp"

namespace muster::launcher {
namespace {

using Trace = nlohmann::ordered_json;

constexpr int kTimeLane = 1;
constexpr int kRoundLane = 2;
constexpr int kEventLane = 3;
constexpr int64_t kFirstRank = 1000000;  // process ids of ranks, behind those of nodes

int64_t Micros(double seconds) { return std::llround(seconds * 1e6); }

Trace Name(int pid, int lane, const char* what, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", lane}, {"args", {{"name", name}}}};
}

Trace Slice(int pid, int lane, const std::string& name, double from, double to) {
  return {{"ph", "X"},
          {"name", name},
          {"cat", "muster"},
          {"pid", pid},
          {"tid", lane},
          {"ts", Micros(from)},
          {"dur", std::max<int64_t>(Micros(to) - Micros(from), 0)}};
}

bool IsMark(const status::DiaryEntry& entry) {
  if (entry.what == status::kSteps) return !entry.steps.empty();
  return entry.what != status::kTurned && entry.what != status::kRound &&
         entry.what != status::kBegan;
}

// The events of a rank, moved to the job's time.
void AddSteps(const std::string& text, const JobHistory& job, Trace& events) {
  const Trace trace = Trace::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!trace.is_object() || !trace.contains("traceEvents")) return;
  const Trace other = trace.value("otherData", Trace::object());
  const auto number = [](const Trace& of, const char* key, int64_t otherwise) {
    const auto found = of.is_object() ? of.find(key) : of.end();
    return of.is_object() && found != of.end() && found->is_number_integer() ? found->get<int64_t>()
                                                                             : otherwise;
  };
  const int64_t rank = number(other, "rank", -1);
  const int64_t shift = number(other, "began_unix_micros", -1) - job.began_unix_millis * 1000;
  if (rank < 0 || shift < 0 || shift > Micros(job.seconds)) return;
  for (Trace event : trace["traceEvents"]) {
    if (!event.is_object()) continue;
    event["pid"] = kFirstRank + rank;
    if (event.contains("ts")) event["ts"] = number(event, "ts", 0) + shift;
    events.push_back(std::move(event));
  }
}

// A round of a node, up to the next one or to its end.
Trace RoundSlice(int pid, const JobEvent& round, double end) {
  Trace slice = Slice(pid, kRoundLane, absl::StrCat("round ", round.entry.round), round.at, end);
  slice["args"] = {{"restart_count", round.entry.restart_count},
                   {"nodes", round.entry.shape.num_nodes},
                   {"ranks", round.entry.shape.world_size},
                   {"reason", round.entry.text}};
  return slice;
}

Trace MarkOf(int pid, const JobEvent& event) {
  Trace mark = {{"ph", "i"},         {"name", event.entry.what}, {"cat", "muster"}, {"pid", pid},
                {"tid", kEventLane}, {"ts", Micros(event.at)},   {"s", "p"}};
  mark["args"] = {
      {"text", event.entry.what == status::kFailure ? FailureInWords(event) : event.entry.text}};
  for (const status::StepOfRank& step : event.entry.steps) {
    mark["args"][absl::StrCat("step of rank ", step.rank)] = step.step;
  }
  return mark;
}

void AddNode(const JobHistory& job, const NodeHistory& node, int pid, Trace& events) {
  events.push_back(
      Name(pid, 0, "process_name",
           absl::StrCat(node.node, ", ranks ", RankRange(node.first_rank, node.num_ranks))));
  events.push_back(Name(pid, kTimeLane, "thread_name", "time"));
  events.push_back(Name(pid, kRoundLane, "thread_name", "rounds"));
  events.push_back(Name(pid, kEventLane, "thread_name", "events"));
  for (const TimeSlice& slice : node.slices) {
    events.push_back(
        Slice(pid, kTimeLane, std::string(ToString(slice.spent)), slice.from, slice.to));
  }
  const JobEvent* round = nullptr;
  for (const JobEvent& event : job.events) {
    if (event.node != node.node) continue;
    if (event.entry.what == status::kRound) {
      if (round != nullptr) events.push_back(RoundSlice(pid, *round, event.at));
      round = &event;
    }
    if (IsMark(event.entry)) events.push_back(MarkOf(pid, event));
  }
  if (round != nullptr) events.push_back(RoundSlice(pid, *round, node.ended));
}

}  // namespace

std::string ReportTrace(const JobHistory& job, const std::vector<std::string>& steps) {
  Trace events = Trace::array();
  int pid = 0;
  for (const NodeHistory& node : job.nodes) AddNode(job, node, ++pid, events);
  for (const std::string& rank : steps) AddSteps(rank, job, events);
  const Trace trace = {
      {"displayTimeUnit", "ms"},
      {"otherData", {{"job", job.run_id}, {"began_unix_millis", job.began_unix_millis}}},
      {"traceEvents", std::move(events)}};
  return trace.dump(-1, ' ', false, Trace::error_handler_t::replace) + "\n";
}

}  // namespace muster::launcher
