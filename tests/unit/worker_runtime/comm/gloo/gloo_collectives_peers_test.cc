// The peers with which a rank must be connected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "worker_runtime/comm/gloo/control_channel.h"
#include "worker_runtime/comm/gloo/gloo_collectives.h"

namespace muster::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr int64_t kManyElements = 1 << 20;

std::vector<Operation> Operations(int size) {
  std::vector<Operation> out;
  for (const int64_t count : {int64_t{1}, kManyElements}) {
    for (const OperationKind kind :
         {OperationKind::kAllReduce, OperationKind::kReduceScatter, OperationKind::kAllGather,
          OperationKind::kBroadcast, OperationKind::kAllToAll, OperationKind::kBarrier}) {
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        out.push_back({.kind = kind, .dtype = dtype, .peer = size / 2, .count = count});
      }
    }
  }
  return out;
}

// Both ends of a connection make it: neither may think that it is not needed.
TEST(GlooPeers, OfACollectiveAreEachOthersPeers) {
  for (const int size : {2, 3, 5, 8, 13, 32}) {
    for (const Operation& operation : Operations(size)) {
      for (int rank = 0; rank < size; ++rank) {
        for (const int peer : PeersOf(operation, rank, size)) {
          const std::vector<int> theirs = PeersOf(operation, peer, size);
          EXPECT_TRUE(std::binary_search(theirs.begin(), theirs.end(), rank))
              << Signature(operation) << ": " << rank << " and " << peer << " of " << size;
        }
      }
    }
  }
}

TEST(GlooPeers, OfARingAreTwoWhateverItsSize) {
  for (const OperationKind kind :
       {OperationKind::kAllReduce, OperationKind::kReduceScatter, OperationKind::kAllGather}) {
    const Operation operation = {.kind = kind, .dtype = DType::kF32, .count = kManyElements};
    EXPECT_THAT(PeersOf(operation, 0, 1024), ElementsAre(1, 1023));
  }
}

TEST(GlooPeers, OfSmallOperationsAndOfTheControlChannelGrowWithTheLogarithm) {
  const int size = 1024;
  const int most = 2 * std::bit_width(unsigned{size});
  for (const OperationKind kind :
       {OperationKind::kAllReduce, OperationKind::kBroadcast, OperationKind::kBarrier}) {
    const Operation operation = {.kind = kind, .dtype = DType::kF32, .peer = 3, .count = 2};
    for (const int rank : {0, 3, 511, 1023}) {
      EXPECT_LE(PeersOf(operation, rank, size).size(), most);
      EXPECT_LE(ControlPeers(rank, size).size(), most);
    }
  }
}

TEST(GlooPeers, OfTheControlChannelInASmallGroupAreAll) {
  for (const int size : {2, 3, 4, 5}) EXPECT_THAT(ControlPeers(0, size), SizeIs(size - 1));
}

}  // namespace
}  // namespace muster::comm
