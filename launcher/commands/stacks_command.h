// `muster stacks [JOB]`: where the ranks of a job are.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Returns the exit code: 0 once a node has answered.
int StacksCommand(const Invocation& invocation);

}  // namespace muster::launcher
