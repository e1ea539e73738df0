#include "worker_runtime/advice/rank_rates.h"

#include <gtest/gtest.h>

namespace muster::advice {
namespace {

TEST(RankRates, OfAHostAreThoseOfACoreAndMoreCoresHideExchanges) {
  const HostFacts host{.gemm_gflops = 100, .link_gigabytes = 8, .cores = 4};
  EXPECT_EQ(ShareOfCore(host, 4), 1);
  const RankRates alone = RatesOfHost(host, 4);
  EXPECT_DOUBLE_EQ(alone.flops, 100e9);
  EXPECT_DOUBLE_EQ(alone.node_links, 8e9);
  EXPECT_DOUBLE_EQ(alone.hidden_share, 0);
  EXPECT_GT(alone.other_share, 0);

  const RankRates helped = RatesOfHost(host, 2);
  EXPECT_DOUBLE_EQ(helped.flops, alone.flops);
  EXPECT_GT(helped.hidden_share, RatesOfHost(host, 3).hidden_share);
  EXPECT_DOUBLE_EQ(helped.hidden_share, RatesOfHost(host, 1).hidden_share);
}

TEST(RankRates, OfAHostAreDividedAmongMoreRanksThanCores) {
  const HostFacts host{.gemm_gflops = 100, .link_gigabytes = 8, .cores = 2};
  EXPECT_DOUBLE_EQ(ShareOfCore(host, 8), 0.25);
  EXPECT_DOUBLE_EQ(RatesOfHost(host, 8).flops, 25e9);
  EXPECT_DOUBLE_EQ(RatesOfHost(host, 8).node_links, 2e9);
  EXPECT_DOUBLE_EQ(ShareOfCore(host, 0), 1);
}

TEST(RankRates, OfAGpuAreBelowWhatItsMakerSaysAndAGibibyteIsNotTheirs) {
  const DeviceFacts device{.memory_gib = 80, .memory_bandwidth = 3e12, .link_bandwidth = 4e11};
  const RankRates rates = RatesOfGpu(1e15, device, 0);
  EXPECT_LT(rates.flops, 1e15);
  EXPECT_LT(rates.memory_bandwidth, 3e12);
  EXPECT_LT(rates.node_links, 4e11);
  EXPECT_EQ(rates.network, 0);
  EXPECT_EQ(UsableBytes(device), int64_t{79} << 30);
}

}  // namespace
}  // namespace muster::advice
