// Measures the network between the doctors of one job, one per node, each with one other at a time.
// Blocks for some seconds.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/bandwidth.h"
#include "proto/base/environment.h"

namespace muster::launcher {

// By RANK and TF_CONFIG of `environment`. On rank 0 what all have measured; on the others, and
// where there is one rank, several on a node, or no TF_CONFIG, nothing. `names` is given the
// address of each node.
std::vector<Rate> MeasureRates(const EnvironmentMap& environment, std::vector<std::string>* names);

}  // namespace muster::launcher
