#include "agent/network/pairs.h"

#include <algorithm>
#include <cerrno>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kSeed = 17;

TEST(PlanPairs, TriesAllPairsOfAFewNodes) {
  EXPECT_EQ(PlanPairs(2, 1, kSeed), (Neighbours{.to = {0}, .from = {0}}));
  EXPECT_THAT(PlanPairs(4, 2, kSeed).to, ElementsAre(0, 1, 3));
  EXPECT_EQ(PlanPairs(64, 5, kSeed).to.size(), 63u);
  EXPECT_THAT(PlanPairs(1, 0, kSeed).to, IsEmpty());
}

TEST(PlanPairs, GivesEachOfManyNodesAsManyNeighbours) {
  for (const int num_nodes : {65, 66, 200, 512}) {
    for (int self = 0; self < num_nodes; ++self) {
      const Neighbours own = PlanPairs(num_nodes, self, kSeed);
      ASSERT_EQ(own.to.size(), static_cast<size_t>(kNeighbours));
      ASSERT_EQ(own.from.size(), static_cast<size_t>(kNeighbours));
      ASSERT_FALSE(std::binary_search(own.to.begin(), own.to.end(), self));
      for (const int peer : own.to) {
        const Neighbours theirs = PlanPairs(num_nodes, peer, kSeed);
        ASSERT_TRUE(std::binary_search(theirs.from.begin(), theirs.from.end(), self));
      }
    }
  }
}

TEST(PlanPairs, DrawsOtherNeighboursFromAnotherSeed) {
  EXPECT_NE(PlanPairs(300, 7, 1), PlanPairs(300, 7, 2));
}

TEST(Introduction, IsReadBack) {
  const Introduction all = {.name = "any\nname", .address = "fd00::1", .port = 29500};
  EXPECT_EQ(DecodeIntroduction(Encode(all)), all);
  for (const char* text : {"", "1", "1\na", "x\na\nb"}) {
    EXPECT_EQ(DecodeIntroduction(text), Introduction()) << text;
  }
}

TEST(FaultOf, TellsHowFarTheConversationCame) {
  EXPECT_EQ(FaultOf(PairStage::kDone, 0), PairFault::kNone);
  EXPECT_EQ(FaultOf(PairStage::kConnecting, ECONNREFUSED), PairFault::kRefused);
  EXPECT_EQ(FaultOf(PairStage::kConnecting, ENETUNREACH), PairFault::kNoRoute);
  EXPECT_EQ(FaultOf(PairStage::kConnecting, EHOSTUNREACH), PairFault::kNoRoute);
  EXPECT_EQ(FaultOf(PairStage::kConnecting, ETIMEDOUT), PairFault::kTimeOut);
  EXPECT_EQ(FaultOf(PairStage::kConnecting, 0), PairFault::kTimeOut);
  EXPECT_EQ(FaultOf(PairStage::kGreeting, 0), PairFault::kTimeOut);
  EXPECT_EQ(FaultOf(PairStage::kBulk, 0), PairFault::kMtu);
}

TEST(PairFault, HasAWordThatIsReadBack) {
  for (const PairFault fault : {PairFault::kNone, PairFault::kRefused, PairFault::kNoRoute,
                                PairFault::kTimeOut, PairFault::kMtu}) {
    EXPECT_EQ(PairFaultOf(ToString(fault)), fault);
  }
  EXPECT_EQ(PairFaultOf("?"), PairFault::kTimeOut);
}

TEST(Describe, NamesBothAddressesAndTheInterface) {
  EXPECT_THAT(
      Describe({"node1", "10.0.0.1", "eth0"}, {"node2", "10.0.0.2", ""}, PairFault::kNoRoute),
      ::testing::StartsWith("node1 (10.0.0.1, eth0) does not reach node2 (10.0.0.2): "
                            "there is no route"));
}

}  // namespace
}  // namespace muster::agent
