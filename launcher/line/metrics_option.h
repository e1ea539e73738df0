// --metrics of `muster run`: where the agent serves metrics. It concerns neither the job, which has
// a JobSpec, nor its output, so it is looked up in the command line by who serves them.
//
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/base/endpoint.h"
#include "proto/base/environment.h"

namespace muster::launcher {

// None where it was not given. `args` are those of a `muster run` that ParseFlags has taken.
std::optional<Endpoint> MetricsAddress(const std::vector<std::string>& args,
                                       const EnvironmentMap& environment);

}  // namespace muster::launcher
