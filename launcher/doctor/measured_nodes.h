// The nodes between which the doctors measure the network, and which of them is this one.
//
// Threads: pure.
#pragma once

#include <vector>

#include "launcher/schedulers/scheduler.h"
#include "proto/base/endpoint.h"
#include "proto/base/environment.h"

namespace muster::launcher {

struct MeasuredNodes {
  std::vector<Endpoint> nodes;  // where each listens, by node
  int self = 0;
};

// A job of ours with one worker per node has those of RANK and TF_CONFIG. A step of Slurm over
// several nodes, which has a task on each, has those of `scheduler`, each at the port that the step
// would have for its rendezvous; other schedulers name their nodes to a shell on the first, too.
// Empty: there is nobody to measure with.
MeasuredNodes FindMeasuredNodes(const EnvironmentMap& environment,
                                const SchedulerFindings& scheduler);

}  // namespace muster::launcher
