// `muster status [JOB]`: how a job is, or which jobs there are.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Returns the exit code, which says how the job is (proto/base/exit_codes.h).
int StatusCommand(const Invocation& invocation);

}  // namespace muster::launcher
