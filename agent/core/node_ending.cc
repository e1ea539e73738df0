#include "agent/core/node_ending.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "proto/base/process_end.h"

namespace muster::agent {
namespace {

int ExitCodeOf(const Departure& departure) {
  if (departure.exit_code != 0) return departure.exit_code;
  return departure.signal != 0 ? ExitCodeOfSignal(departure.signal) : kExitFailure;
}

}  // namespace

void NodeEnding::Depart(Departure departure) { departure_ = std::move(departure); }

void NodeEnding::End(JobOutcome outcome) { outcome_ = std::move(outcome); }

void NodeEnding::NoteJobFailed(std::optional<StopRound> stop) { job_failed_ = std::move(stop); }

JobOutcome NodeEnding::OutcomeOfDeparture() const {
  return {.exit_code = ExitCodeOf(*departure_), .reason = departure_->reason};
}

JobOutcome NodeEnding::OutcomeAsTold(const std::string& why_no_more,
                                     const AgentCoreOptions& options,
                                     const WorkerGroup& workers) const {
  return {.exit_code = job_failed_->exit_code,
          .reason = absl::StrCat(job_failed_->reason, "; ", options.server, " ", why_no_more),
          .failures = workers.Failures()};
}

JobOutcome NodeEnding::OutcomeOfNoAnswer(const std::string& detail,
                                         const AgentCoreOptions& options) {
  return {.exit_code = kExitNodesMissing,
          .reason = absl::StrCat("could not reach ", options.server, " within ",
                                 absl::FormatDuration(options.settings.join_timeout), ": ",
                                 detail.empty() ? "no answer" : detail,
                                 ". Is the node that hosts it started, and the port open?")};
}

JobOutcome NodeEnding::OutcomeWithoutServer(const std::string& silence,
                                            const AgentCoreOptions& options,
                                            const WorkerGroup& workers) {
  JobOutcome outcome{
      .exit_code = kExitServerLost,
      .reason = absl::StrCat("lost ", options.server, ": ", silence,
                             "; run musterd elsewhere for a rendezvous that outlives a node"),
      .failures = workers.Failures()};
  if (!outcome.failures.empty()) {
    outcome.root_cause = outcome.failures.front();
    outcome.exit_code = muster::ExitCodeOf(*outcome.root_cause);
  }
  return outcome;
}

std::string NodeEnding::WhyNoRoundFollows(After after) const {
  if (after == After::kFinish && outcome_) return outcome_->reason;
  return departure_ ? departure_->reason : "the job starts over";
}

}  // namespace muster::agent
