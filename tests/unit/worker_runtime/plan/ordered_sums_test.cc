#include "worker_runtime/plan/ordered_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/sum_tree.h"

namespace muster::plan {
namespace {

using ::testing::ElementsAre;

// A sum that remembers how it was made: "(0+1)".
std::string Sum(const std::string& left, const std::string& right) {
  return absl::StrCat("(", left, "+", right, ")");
}

// The sum by the definition of the tree.
std::string SumOfSubtree(LeafRange leaves) {
  if (leaves.end - leaves.begin == 1) return absl::StrCat(leaves.begin);
  const int64_t middle = leaves.begin + SumTreeSplit(leaves.end - leaves.begin);
  return Sum(SumOfSubtree({leaves.begin, middle}), SumOfSubtree({middle, leaves.end}));
}

// Executes the plan as an engine does. Empty slots are free.
std::vector<std::string> Execute(const OrderedSums& sums, int64_t first_leaf) {
  std::vector<std::string> slots(sums.num_slots);
  for (const OrderedLeaf& leaf : sums.leaves) {
    for (int slot = 0; slot < leaf.slot; ++slot) EXPECT_NE(slots.at(slot), "") << "a lower one";
    EXPECT_EQ(slots.at(leaf.slot), "");
    slots[leaf.slot] = absl::StrCat(first_leaf++);
    for (const Merge& merge : leaf.merges) {
      slots.at(merge.left_slot) = Sum(slots[merge.left_slot], slots.at(merge.right_slot));
      slots[merge.right_slot].clear();
    }
  }
  return slots;
}

TEST(PlanOrderedSums, GivesTheSubtreesOfTheTreeWhereverTheRanksCutIt) {
  for (int64_t size = 1; size <= 9; ++size) {
    for (int64_t k = 1; k <= 9; ++k) {
      for (int64_t rank = 0; rank < size; ++rank) {
        SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", size, ", accumulation ", k));
        const OrderedSums sums = PlanOrderedSums(rank, size, k);
        ASSERT_EQ(static_cast<int64_t>(sums.leaves.size()), k);
        const std::vector<std::string> slots = Execute(sums, rank * k);
        std::vector<std::string> expected;
        for (LeafRange root : CoverWithSubtrees({rank * k, (rank + 1) * k}, size * k)) {
          expected.push_back(SumOfSubtree(root));
        }
        std::vector<std::string> roots;
        for (int slot : sums.root_slots) roots.push_back(slots.at(slot));
        EXPECT_EQ(roots, expected);
      }
    }
  }
}

TEST(PlanOrderedSums, AddsSiblingsAsSoonAsBothAreThere) {
  const OrderedSums sums = PlanOrderedSums(0, 1, 4);
  EXPECT_THAT(sums.leaves, ElementsAre(OrderedLeaf{.slot = 0}, OrderedLeaf{1, {{0, 1}}},
                                       OrderedLeaf{.slot = 1}, OrderedLeaf{2, {{1, 2}, {0, 1}}}));
  EXPECT_THAT(sums.root_slots, ElementsAre(0));
}

TEST(PlanOrderedSums, LeavesToTheCommunicatorWhatReachesBeyondTheRank) {
  // Leaves 3, 4, 5 of 6: 2+3 belongs to two ranks, 4+5 to this one.
  const OrderedSums sums = PlanOrderedSums(1, 2, 3);
  EXPECT_THAT(sums.leaves, ElementsAre(OrderedLeaf{.slot = 0}, OrderedLeaf{.slot = 1},
                                       OrderedLeaf{2, {{1, 2}}}));
  EXPECT_THAT(sums.root_slots, ElementsAre(0, 1));
}

TEST(OrderedPartialSums, AreNoneForOneMicroBatchPerRank) {
  for (int64_t rank = 0; rank < 5; ++rank) EXPECT_EQ(OrderedPartialSums(rank, 5, 1), 0);
}

TEST(OrderedPartialSums, GrowWithTheLogarithmOfTheAccumulation) {
  EXPECT_EQ(OrderedPartialSums(0, 1, 2), 1);
  EXPECT_EQ(OrderedPartialSums(0, 1, 8), 3);
  EXPECT_EQ(OrderedPartialSums(3, 4, 1024), 10);
}

TEST(OrderedPartialSums, AreTheSlotsOfThePlanBeyondTheFirst) {
  for (int64_t size = 1; size <= 9; ++size) {
    for (int64_t k = 1; k <= 40; ++k) {
      for (int64_t rank = 0; rank < size; ++rank) {
        EXPECT_EQ(OrderedPartialSums(rank, size, k), PlanOrderedSums(rank, size, k).num_slots - 1)
            << "rank " << rank << " of " << size << ", accumulation " << k;
      }
    }
  }
}

TEST(OrderedPartialSums, AreCountedAtOnceForVeryManyMicroBatches) {
  EXPECT_EQ(OrderedPartialSums(0, 1, int64_t{1} << 40), 40);
}

}  // namespace
}  // namespace muster::plan
