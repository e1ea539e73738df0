// Measures the network between the doctors of one job, one per node, each with one other at a time.
// Blocks for some seconds.
#pragma once

#include <vector>

#include "launcher/doctor/bandwidth.h"
#include "launcher/doctor/measured_nodes.h"

namespace muster::launcher {

// Node 0 gets what all have measured, the others get nothing.
std::vector<Rate> MeasureRates(const MeasuredNodes& nodes);

}  // namespace muster::launcher
