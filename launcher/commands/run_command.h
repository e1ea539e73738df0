// `muster run`: one node's part of a job, from the command line to the exit code.
//
// The walk: ParseFlags -> PrepareNode (node_setup.h) -> ForkGuardian -> the rendezvous (embedded,
// or a link to it) -> Agent -> JobOutcome -> FormatExitSummary and the exit code.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Returns the exit code (proto/base/exit_codes.h). Must be called on the main thread, before any
// other thread exists.
int RunCommand(const Invocation& invocation);

}  // namespace muster::launcher
