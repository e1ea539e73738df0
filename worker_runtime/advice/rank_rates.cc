#include "worker_runtime/advice/rank_rates.h"

#include <algorithm>

namespace muster::advice {
namespace {

// Products reach about half of a GPU's peak, and transfers most of a link's. On a host a step takes
// a fifth to a quarter more than what DecoderConfig::flops_per_token counts at the rate of large
// products: smaller ones are slower, there are other operations, and half of attention is masked
// away. Source: step_time_bench.py, where it was 0.19 to 0.25 for ten plans.
constexpr double kShareOfPeak = 0.5;
constexpr double kLinkShare = 0.8;
constexpr double kOtherOnHost = 0.23;
// The share of an exchange on a host, carried by processors, that one more for each rank hides.
constexpr double kHiddenBySpareCores = 0.8;
// CUDA itself and NCCL take about a GiB.
constexpr double kTakenGib = 1;

double CoresOfRank(const HostFacts& host, int64_t ranks) {
  return static_cast<double>(host.cores) / static_cast<double>(std::max(ranks, int64_t{1}));
}

}  // namespace

RankRates RatesOfGpu(double peak, const DeviceFacts& device, double network) {
  return {.flops = kShareOfPeak * peak,
          .memory_bandwidth = kLinkShare * device.memory_bandwidth,
          .node_links = kLinkShare * device.link_bandwidth,
          .network = kLinkShare * network};
}

double ShareOfCore(const HostFacts& host, int64_t ranks) {
  return std::min(1.0, CoresOfRank(host, ranks));
}

RankRates RatesOfHost(const HostFacts& host, int64_t ranks) {
  const double share = ShareOfCore(host, ranks);
  const double spare = std::clamp(CoresOfRank(host, ranks) - 1, 0.0, 1.0);
  return {.flops = share * host.gemm_gflops * 1e9,
          .other_share = kOtherOnHost,
          .node_links = share * host.link_gigabytes * 1e9,
          .hidden_share = kHiddenBySpareCores * spare};
}

int64_t UsableBytes(const DeviceFacts& device) {
  return static_cast<int64_t>((device.memory_gib - kTakenGib) * (1 << 30));
}

}  // namespace muster::advice
