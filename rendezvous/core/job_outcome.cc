#include "rendezvous/core/job_outcome.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {
namespace {

void RecordFailure(JobState& state, WorkerFailure failure, MonoTime at) {
  auto known = std::find_if(state.failures.begin(), state.failures.end(),
                            [&](const auto& f) { return f.failure.rank == failure.rank; });
  if (known != state.failures.end()) {
    known->at = Min(known->at, at);
  } else {
    state.failures.push_back({at, std::move(failure)});
  }
}

// The failure of an agent that says "failed" and nothing else.
WorkerFailure UnexplainedFailure(const NodeState& member, const Assignment& assignment) {
  return {.rank = assignment.first_rank,
          .node_rank = assignment.node_rank,
          .node_name = member.report.node.name,
          .exit_code = kExitFailure,
          .message = "the agent gave no details"};
}

// Both ends stay: what failed is often said first, and the exception of a traceback last.
void CutTo(size_t bytes, std::string& text) {
  constexpr absl::string_view kGap = "\n...\n";
  if (text.size() <= bytes) return;
  if (bytes <= kGap.size()) return text.resize(bytes);
  const size_t half = (bytes - kGap.size()) / 2;
  text.replace(half, text.size() - 2 * half, kGap.data(), kGap.size());
}

std::vector<WorkerFailure> CutFailuresOf(const JobState& state) {
  std::vector<WorkerFailure> failures;
  for (const auto& timed : state.failures) {
    WorkerFailure& failure = failures.emplace_back(timed.failure);
    size_t left = kOtherFailureBytes;
    for (std::string* text :
         {&failure.error_file, &failure.ended_by, &failure.message, &failure.last_output}) {
      CutTo(left, *text);
      left -= text->size();
    }
  }
  return failures;
}

bool HasNoProgress(const JobState& state) {
  return state.committed_step >= 0 && state.restarts_without_commit >= kMaxRestartsWithoutCommit;
}

// Ranks die of each other's end, and the one that knows best need not be the first. There is a
// failure.
const WorkerFailure& FailureToBlame(const JobState& state) {
  for (const auto& timed : state.failures) {
    if (ForbidsRestart(timed.failure)) return timed.failure;
  }
  return state.failures.front().failure;
}

// `outcome` is a failure that ends the job; adds why it is not tried again.
JobOutcome WithWhyNoRestart(const JobState& state, JobOutcome outcome) {
  const int budget = state.settings->max_restarts;
  if (budget > 0 && AsksForNoRestart(state)) {
    absl::StrAppend(&outcome.reason, "; this exit code forbids a restart");
  } else if (state.restarts_used < budget && HasNoProgress(state)) {
    outcome.exit_code = kExitNoProgress;
    outcome.reason = absl::StrCat("no progress: ", state.restarts_without_commit,
                                  " restarts in a row, and no checkpoint since that of step ",
                                  state.committed_step, "; the last: ", outcome.reason);
  } else if (budget > 0) {
    absl::StrAppend(
        &outcome.reason, "; ",
        budget == 1 ? "the one restart is" : absl::StrCat("all ", budget, " restarts are"),
        " used");
  }
  return outcome;
}

}  // namespace

void RecordFailures(JobState& state, const NodeState& member, MonoTime now) {
  const Assignment& assignment = state.assignments.at(member.incarnation);
  const int first = assignment.first_rank.value();
  for (const WorkerFailure& failure : member.report.failures) {
    const int rank = failure.rank.value();
    if (rank < first || rank >= first + assignment.local_world_size) continue;
    RecordFailure(state, failure, now - failure.age);
  }
  if (member.report.phase == AgentPhase::kFailed && member.report.failures.empty()) {
    RecordFailure(state, UnexplainedFailure(member, assignment), now);
  }
  std::sort(state.failures.begin(), state.failures.end(), [](const auto& a, const auto& b) {
    return a.at != b.at ? a.at < b.at : a.failure.rank < b.failure.rank;
  });
  if (state.failures.size() > kMaxFailuresKept) state.failures.resize(kMaxFailuresKept);
}

std::vector<WorkerFailure> FailuresOf(const JobState& state) {
  std::vector<WorkerFailure> failures = CutFailuresOf(state);
  if (!failures.empty()) failures.front() = state.failures.front().failure;
  return failures;
}

bool AsksForNoRestart(const JobState& state) {
  return !state.failures.empty() && ForbidsRestart(FailureToBlame(state));
}

bool IsRestartPointless(const JobState& state) {
  return HasNoProgress(state) || AsksForNoRestart(state);
}

JobOutcome OutcomeOfFailures(const JobState& state) {
  const WorkerFailure& root_cause = FailureToBlame(state);
  JobOutcome outcome =
      WithWhyNoRestart(state, {.exit_code = ExitCodeOf(root_cause), .reason = InWords(root_cause)});
  outcome.root_cause = root_cause;
  outcome.failures = CutFailuresOf(state);
  return outcome;
}

JobOutcome OutcomeOfLoss(const JobState& state, const std::string& reason) {
  JobOutcome outcome = WithWhyNoRestart(state, {.exit_code = kExitFailure, .reason = reason});
  outcome.failures = FailuresOf(state);
  return outcome;
}

JobOutcome OutcomeOfDeparture(const Departure& departure, std::string reason) {
  if (departure.exit_code != 0) {
    return {.exit_code = departure.exit_code, .reason = std::move(reason)};
  }
  return {.exit_code = departure.signal != 0 ? ExitCodeOfSignal(departure.signal) : kExitFailure,
          .reason = std::move(reason)};
}

}  // namespace muster::rendezvous
