// How much each rank sends.
//
// Threads: pure.
// Source:  muster/communicator.h, the costs of its operations
#pragma once

#include <cstdint>

#include "muster/plan.h"

namespace muster::plan {

struct WireInput {
  int64_t world_size = 1;
  int64_t gradient_bytes = 0;  // of the flat buffer, padding included
};

// Bytes sent in a step by the rank that sends most. Headers of messages are not counted.
struct WirePlan {
  int64_t gradients = 0;
  int64_t loss = 0;  // with the count of tokens
  int64_t total() const { return gradients + loss; }
};

// With n ranks and G bytes of gradients: 2(n-1)/n * G in fast mode. In ordered mode a rank sends
// every root of its range of the sum tree, so it is (roots + 1)(n-1)/n * G; one root if the number
// of micro-batches per rank is a power of two.
WirePlan PlanWire(const Plan& plan, const WireInput& input);

}  // namespace muster::plan
