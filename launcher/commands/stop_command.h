// `muster stop` and `muster drain NODE`: a person asks the rendezvous of a job for a stop.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Prints what the rendezvous answers. Returns the exit code (proto/base/exit_codes.h): 0 once the
// stop is on its way, which it then is also if the server dies and comes back with its state.
int StopCommand(const Invocation& invocation);
int DrainCommand(const Invocation& invocation);

}  // namespace muster::launcher
