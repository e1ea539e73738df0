// Looks at this node for `muster doctor`. Starts nothing; what the driver does not answer may take
// long.
#pragma once

#include "launcher/doctor/node_health.h"
#include "proto/base/environment.h"

namespace muster::launcher {

NodeHealth LookAtThisNode(const EnvironmentMap& environment);
GpusHealth LookAtGpus();

}  // namespace muster::launcher
