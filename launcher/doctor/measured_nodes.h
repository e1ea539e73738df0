// Between which nodes the doctors measure the network, and which of them is this one.
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

// Of a job of ours with one worker per node those of RANK and TF_CONFIG. Elsewhere the nodes of
// `scheduler`, if it names several and tells this one among them, each at the port that the step
// would have for its rendezvous. Empty: there is nobody to measure with.
MeasuredNodes FindMeasuredNodes(const EnvironmentMap& environment,
                                const SchedulerFindings& scheduler);

}  // namespace muster::launcher
