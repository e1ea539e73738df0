// The status of a job, from what its server knows: nobody is asked.
//
// Threads: pure.
#pragma once

#include <string>

#include "proto/base/mono_time.h"
#include "rendezvous/core/round_state.h"
#include "rendezvous/status/job_progress.h"
#include "rendezvous/status/status_page.h"

namespace muster::status {

// `progress` may be null: no agent has told any.
StatusPage MakeStatusPage(const std::string& run_id, const rendezvous::JobState& state,
                          const JobProgress* progress, MonoTime now);

// The page of a job that is over, and of which only its end is known.
StatusPage MakeEndedPage(const std::string& run_id, const JobOutcome& outcome);

}  // namespace muster::status
