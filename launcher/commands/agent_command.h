// `muster agent`: the end of `muster run --hostfile` on each host. Not for people.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Greets, reads what to start (remote_start.h) from standard input, runs it as a process of its
// own, and returns its exit code. Further lines "signal N" are signals for it. The end of the
// input, which is the end of the connection, ends nothing.
int AgentCommand(const Invocation& invocation);

}  // namespace muster::launcher
