// How long a lease is: the server counts by it, and so do agents for themselves.
//
// Threads: pure.
#pragma once

#include <algorithm>

#include "proto/base/membership.h"

namespace muster {

// Renewing an unchanged lease costs about a tenth of a millisecond, so 2000 of them every two
// seconds a tenth of one core.
inline constexpr double kNodesPerLease = 2000;

// The lease of each node of a job. It grows with their number, so that ten thousand renewals cost
// the server no more than two thousand would: 6 s up to 2000 nodes, 30 s with 10 000.
inline LeaseSettings LeaseOf(const LeaseSettings& settings, int num_nodes) {
  const double factor = std::max(1.0, num_nodes / kNodesPerLease);
  return {.duration = settings.duration * factor,
          .renew_interval = settings.renew_interval * factor,
          .margin = settings.margin};
}

}  // namespace muster
