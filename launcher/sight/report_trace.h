// A job's history as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing show: a process
// for each node, with a lane for what its time was spent on, one for its rounds, and marks for
// failures, hangs and what agents said; and what ranks of muster-train did in their first steps.
//
// Threads: pure.
// Source: "Trace Event Format" (the JSON form: traceEvents with ph X, i and M; times in
//         microseconds).
#pragma once

#include <string>
#include <vector>

#include "launcher/sight/job_history.h"

namespace muster::launcher {

// `steps`: what muster-train --trace wrote of its ranks (worker_runtime/train/step_trace.h); each
// gets a process of its own. What is none, or is of another time, is left out.
std::string ReportTrace(const JobHistory& job, const std::vector<std::string>& steps = {});

}  // namespace muster::launcher
