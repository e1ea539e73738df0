// What a server tells a Prometheus of its jobs: of each the figures of its status, and of its nodes
// and their leases.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "rendezvous/status/status_page.h"

namespace muster::status {

// Nodes of a job beyond it have no samples of their own.
inline constexpr size_t kNodesInMetricsMax = 1024;

// The text; `version` is this program's.
std::string JobMetrics(const std::vector<StatusPage>& jobs, const std::string& version);

}  // namespace muster::status
