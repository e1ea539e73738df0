// What one rank reaches of what devices and links can do.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "worker_runtime/advice/device_table.h"

namespace muster::advice {

struct RankRates {
  double flops = 0;             // per second that products reach
  double other_share = 0;       // time of all else than products, as a share of theirs
  double memory_bandwidth = 0;  // bytes per second
  double node_links = 0;        // bytes per second between ranks of a node
  double network = 0;           // bytes per second that a node sends; 0: there is one node
  double hidden_share = 0.8;    // of what could run behind products
};

// A node without GPUs, as machine_rates (tests/bench) measures it.
struct HostFacts {
  double gemm_gflops = 0;     // of one core, in f32
  double link_gigabytes = 0;  // a second, from rank to rank
  int64_t cores = 1;
};

// `peak`: operations a second of the device in the type that is trained in.
RankRates RatesOfGpu(double peak, const DeviceFacts& device, double network);
// The share of a core that each of so many ranks of a node has; 1 where it has one or more.
double ShareOfCore(const HostFacts& host, int64_t ranks);
RankRates RatesOfHost(const HostFacts& host, int64_t ranks);

// The bytes of a device's memory that are left to a rank.
int64_t UsableBytes(const DeviceFacts& device);

}  // namespace muster::advice
