// `muster run`: one node's part of a job, from the command line to the exit code.
//
// The walk: ParseFlags -> PrepareNode (node_setup.h) -> ForkGuardian -> the rendezvous (embedded,
// or a link to it) -> Agent -> JobOutcome -> FormatExitSummary and the exit code.
#pragma once

#include "absl/status/status.h"
#include "launcher/line/invocation.h"
#include "proto/base/membership.h"

namespace muster::launcher {

// Returns the exit code (proto/base/exit_codes.h). Must be called on the main thread, before any
// other thread exists.
int RunCommand(const Invocation& invocation);

// Returns the exit code of `outcome`. What started us finds why the job failed in the file that it
// named in TORCHELASTIC_ERROR_FILE; one that cannot be written costs a line.
int EndRun(const JobOutcome& outcome, const Invocation& invocation);

// The same of a job that is refused, once the log has said why.
int RefuseRun(const absl::Status& status, const Invocation& invocation);

}  // namespace muster::launcher
