// A job's history as one HTML page that needs nothing else: no script, no font, no request.
//
// Threads: pure.
#pragma once

#include <string>

#include "launcher/sight/job_history.h"

namespace muster::launcher {

std::string ReportHtml(const JobHistory& job);

}  // namespace muster::launcher
