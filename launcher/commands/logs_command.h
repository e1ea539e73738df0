// `muster logs [JOB]`: what the ranks of a job have written to their log files.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Returns the exit code: 0 once a node has answered. With --follow it ends with the job.
int LogsCommand(const Invocation& invocation);

}  // namespace muster::launcher
