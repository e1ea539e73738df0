// How a node ends: by its own decision (a departure), as the job does (an outcome), or, where the
// server that would have told the outcome is gone, as it was told last.
//
// Threads: compatible.
#pragma once

#include <optional>
#include <string>

#include "agent/core/stop_ladder.h"
#include "agent/core/worker_group.h"
#include "proto/base/membership.h"

namespace muster::agent {

class NodeEnding {
 public:
  // The node ends by its own decision; a later one takes the place of an earlier.
  void Depart(Departure departure);
  void End(JobOutcome outcome);
  // The round fails the job, as the server has said: the outcome is still to come. Nothing: the
  // round ends for another reason.
  void NoteJobFailed(std::optional<StopRound> stop);

  bool is_leaving() const { return departure_.has_value(); }
  bool has_outcome() const { return outcome_.has_value(); }
  bool is_open() const { return !departure_ && !outcome_; }
  bool is_job_failed() const { return job_failed_.has_value(); }
  const std::optional<Departure>& departure() const { return departure_; }
  const JobOutcome& outcome() const { return *outcome_; }

  // What the node ends with after its departure.
  JobOutcome OutcomeOfDeparture() const;
  // What the job ends with whose server is gone after it had said that the job fails.
  JobOutcome OutcomeAsTold(const std::string& why_no_more, const AgentCoreOptions& options,
                           const WorkerGroup& workers) const;
  // What it ends with where nobody has ever answered; `detail`: the last that was tried.
  static JobOutcome OutcomeOfNoAnswer(const std::string& detail, const AgentCoreOptions& options);
  // What it ends with where the server is lost, and the job may go on: `silence` says for how long.
  static JobOutcome OutcomeWithoutServer(const std::string& silence,
                                         const AgentCoreOptions& options,
                                         const WorkerGroup& workers);
  // The reason given to workers that await a round which does not come.
  std::string WhyNoRoundFollows(After after) const;

 private:
  std::optional<StopRound> job_failed_;  // told so of the round
  std::optional<JobOutcome> outcome_;
  std::optional<Departure> departure_;
};

}  // namespace muster::agent
