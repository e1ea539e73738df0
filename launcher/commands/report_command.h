// `muster report`: what happened in a job that kept its logs. `muster explain`: what an incident
// file says. `muster metrics_token`: what a Prometheus has to show. Each looks at files of this
// machine alone.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Return the exit code.
int ReportCommand(const Invocation& invocation);
int ExplainCommand(const Invocation& invocation);
int MetricsTokenCommand(const Invocation& invocation);

}  // namespace muster::launcher
