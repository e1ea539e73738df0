#include "muster/sum_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace muster {
namespace {

using ::testing::ElementsAre;

TEST(SumTree, SplitsAtTheLargestPowerOfTwoBelow) {
  EXPECT_EQ(SumTreeSplit(2), 1);
  EXPECT_EQ(SumTreeSplit(3), 2);
  EXPECT_EQ(SumTreeSplit(4), 2);
  EXPECT_EQ(SumTreeSplit(5), 4);
  EXPECT_EQ(SumTreeSplit(9), 8);
}

TEST(SumTree, CoversARangeWithTheLargestSubtrees) {
  EXPECT_THAT(CoverWithSubtrees({0, 3}, 6), ElementsAre(LeafRange{0, 2}, LeafRange{2, 3}));
  EXPECT_THAT(CoverWithSubtrees({3, 6}, 6), ElementsAre(LeafRange{3, 4}, LeafRange{4, 6}));
  EXPECT_THAT(CoverWithSubtrees({4, 8}, 16), ElementsAre(LeafRange{4, 8}));
  EXPECT_THAT(CoverWithSubtrees({0, 6}, 6), ElementsAre(LeafRange{0, 6}));
  EXPECT_TRUE(CoverWithSubtrees({2, 2}, 6).empty());
}

TEST(SumTree, AddsByItsSplits) {
  // (1e16 + 1) + (1 - 1e16) for four, and the fifth is added last.
  const std::vector<double> values = {1e16, 1, 1, -1e16, 3};
  EXPECT_EQ(TreeSum(values), ((1e16 + 1) + (1 - 1e16)) + 3);
  EXPECT_EQ(TreeSum({}), 0);
}

}  // namespace
}  // namespace muster
