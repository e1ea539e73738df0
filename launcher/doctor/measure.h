// Measures the network between the doctors of one job, one per node, each with one other at a time.
// Blocks for some seconds.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/bandwidth.h"
#include "proto/base/environment.h"

namespace muster::launcher {

// Ranks find each other by RANK and TF_CONFIG. Rank 0 gets what all have measured; the others, and
// a job of one rank, of several on a node or without TF_CONFIG, get nothing. `names` gets the
// address of each node.
std::vector<Rate> MeasureRates(const EnvironmentMap& environment, std::vector<std::string>* names);

}  // namespace muster::launcher
