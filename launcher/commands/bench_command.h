// `muster bench scaling`: the same program at several numbers of ranks.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Runs and measures, prints a table. Returns the exit code (proto/base/exit_codes.h).
int BenchCommand(const Invocation& invocation);

}  // namespace muster::launcher
