// `muster top [JOB]`: what the ranks of a job, their nodes and GPUs do, redrawn every two seconds.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Returns the exit code. Where the standard output is no terminal it prints once.
int TopCommand(const Invocation& invocation);

}  // namespace muster::launcher
