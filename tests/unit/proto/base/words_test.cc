#include "proto/base/words.h"

#include <vector>

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(RanksInWords, NamesRunsOfThreeAndMoreAsRanges) {
  EXPECT_EQ(RanksInWords({3}), "rank 3");
  EXPECT_EQ(RanksInWords({3, 5}), "ranks 3 and 5");
  EXPECT_EQ(RanksInWords({4, 5, 6, 7}), "ranks 4-7");
  EXPECT_EQ(RanksInWords({0, 1, 3, 4, 5}), "ranks 0, 1 and 3-5");
}

TEST(RanksInWords, CutsLongLists) {
  std::vector<int> even;
  for (int rank = 0; rank < 200; rank += 2) even.push_back(rank);
  EXPECT_EQ(RanksInWords(even), "ranks 0, 2, 4, 6, 8, 10 and 94 more");
}

}  // namespace
}  // namespace muster
