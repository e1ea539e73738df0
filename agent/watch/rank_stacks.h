// The stacks of ranks that are looked into, for their reports.
#pragma once

#include <vector>

#include "rendezvous/verdict/incident_parts.h"

namespace muster::agent {

// Fills in `python` of those that have none, where Python runs in them (python_stack.h), for two seconds
// in all.
//
// Threads: safe; blocks, so not on the loop.
void ReadPythonOfRanks(std::vector<verdict::RankReport>& ranks);

// The same, and then `frames` or `no_frames` of each, in this order, for eight seconds in all.
//
// Threads: safe; blocks, so not on the loop.
void ReadStacksOfRanks(std::vector<verdict::RankReport>& ranks);

}  // namespace muster::agent
