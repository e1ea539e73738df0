#include "rendezvous/core/stop_step.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {

void AskForStop(JobState& state, StopStep asked, MonoTime now) {
  if (!state.stop_step) {
    state.stop_step = std::move(asked);
    state.stop_asked_at = now;
    NoteFloorsOfFinished(state);
  } else if (asked.ends_job && !state.stop_step->ends_job) {
    asked.step = state.stop_step->step;
    state.stop_step = std::move(asked);
  }
}

void NoteFloorsOfFinished(JobState& state) {
  for (const Incarnation member : state.succeeded) state.stop_floors.try_emplace(member, -1);
}

void NoteStopFloor(JobState& state, const NodeState& member) {
  // What is said beyond a step that is named is no promise, but a broken one.
  if (!state.stop_step || state.stop_step->step != kStopStepOpen) return;
  const AgentReport& report = member.report;
  if (report.stop_floor) {
    state.stop_floors[member.incarnation] = *report.stop_floor;
  } else if (report.phase == AgentPhase::kSucceeded) {
    state.stop_floors.try_emplace(member.incarnation, -1);
  } else {
    state.stop_floors.erase(member.incarnation);  // one of its workers promises nothing any more
  }
}

bool NameStopStep(JobState& state) {
  if (!state.stop_step || state.stop_step->step != kStopStepOpen) return false;
  if (state.stop_floors.size() < state.members.size()) return false;
  if (state.succeeded.size() == state.members.size()) return false;  // they have finished
  int64_t furthest = 0;  // where none has begun a step, all leave after the first
  for (const auto& [unused, floor] : state.stop_floors) furthest = std::max(furthest, floor);
  state.stop_step->step = furthest;
  return true;
}

MonoTime StopPatienceEnds(const JobState& state) {
  const bool is_open = state.stop_step && state.stop_step->step == kStopStepOpen;
  if (!is_open) return MonoTime::InfiniteFuture();
  return state.stop_asked_at + state.settings->shutdown_timeout;
}

bool EndsByStop(const JobState& state) { return state.stop_step && state.stop_step->ends_job; }

JobOutcome OutcomeOfStop(const JobState& state, const std::string& instead) {
  const StopStep& stop = *state.stop_step;
  const std::string how = instead.empty() ? absl::StrCat("every rank left after step ", stop.step)
                                          : absl::StrCat("not after one step: ", instead);
  return {.exit_code = stop.exit_code, .reason = absl::StrCat(stop.reason, "; ", how)};
}

EndJob EndOfDrained(const JobState& state, Incarnation node) {
  const DrainedNode& drained = state.drained.at(node);
  const std::string wait = WaitWithoutDrained(state);
  const absl::string_view advice =
      wait.empty() ? "" : "; start a node in its place, or end the job with `muster stop`";
  return EndJob{
      {.exit_code = drained.exit_code, .reason = absl::StrCat(drained.reason, wait, advice)}};
}

std::string WaitWithoutDrained(const JobState& state) {
  const auto left = std::count_if(state.nodes.begin(), state.nodes.end(), [&](const auto& entry) {
    return !state.drained.contains(entry.first);
  });
  const int missing = state.settings->min_nodes - static_cast<int>(left);
  if (missing <= 0 || left == 0) return "";
  return absl::StrCat("; the next round then waits for ", missing, " more ", Nodes(missing), ", ",
                      InWords(state.settings->join_timeout), " at most (--rdzv_conf=join_timeout)");
}

bool HasNodeThatStays(const JobState& state) {
  return std::any_of(state.nodes.begin(), state.nodes.end(),
                     [&](const auto& entry) { return !state.drained.contains(entry.first); });
}

}  // namespace muster::rendezvous
