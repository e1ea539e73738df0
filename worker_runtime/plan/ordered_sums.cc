#include "worker_runtime/plan/ordered_sums.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "muster/sum_tree.h"
#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

// Walks the part of the tree that one rank computes, children before their parent, left to right.
class Planner {
 public:
  explicit Planner(LeafRange range) : range_(range) {}

  // Finds the largest subtrees inside the range, and adds up each.
  void Cover(LeafRange subtree) {
    if (subtree.end <= range_.begin || range_.end <= subtree.begin) return;
    if (range_.begin <= subtree.begin && subtree.end <= range_.end) {
      sums_.root_slots.push_back(AddUp(subtree));
      return;
    }
    const int64_t middle = Middle(subtree);
    Cover({subtree.begin, middle});
    Cover({middle, subtree.end});
  }

  OrderedSums Take() {
    sums_.num_slots = static_cast<int>(used_.size());
    return std::move(sums_);
  }

 private:
  static int64_t Middle(LeafRange subtree) {
    return subtree.begin + SumTreeSplit(subtree.end - subtree.begin);
  }

  // Returns the slot of the sum.
  int AddUp(LeafRange subtree) {
    if (subtree.end - subtree.begin == 1) return AddLeaf();
    const int64_t middle = Middle(subtree);
    const int left = AddUp({subtree.begin, middle});
    const int right = AddUp({middle, subtree.end});
    sums_.leaves.back().merges.push_back({.left_slot = left, .right_slot = right});
    used_[right] = false;
    return left;
  }

  int AddLeaf() {
    const auto free = std::find(used_.begin(), used_.end(), false);
    const int slot = static_cast<int>(free - used_.begin());
    if (free == used_.end()) used_.push_back(false);
    used_[slot] = true;
    sums_.leaves.push_back({.slot = slot});
    return slot;
  }

  const LeafRange range_;
  std::vector<bool> used_;  // by slot
  OrderedSums sums_;
};

// While the right half is added up, the left one waits in one slot.
int64_t SlotsOfSubtree(int64_t num_leaves) {
  if (num_leaves == 1) return 1;
  const int64_t left = SumTreeSplit(num_leaves);
  const int64_t left_slots = std::bit_width(static_cast<uint64_t>(left));  // a power of two
  return std::max(left_slots, 1 + SlotsOfSubtree(num_leaves - left));
}

}  // namespace

OrderedSums PlanOrderedSums(int64_t rank, int64_t size, int64_t accumulation) {
  MUSTER_CHECK(0 <= rank && rank < size && accumulation >= 1);
  Planner planner({.begin = rank * accumulation, .end = (rank + 1) * accumulation});
  planner.Cover({.begin = 0, .end = size * accumulation});
  return planner.Take();
}

int64_t OrderedPartialSums(int64_t rank, int64_t size, int64_t accumulation) {
  MUSTER_CHECK(0 <= rank && rank < size && accumulation >= 1);
  const std::vector<LeafRange> roots = CoverWithSubtrees(
      {.begin = rank * accumulation, .end = (rank + 1) * accumulation}, size * accumulation);
  int64_t slots = 0;
  for (size_t i = 0; i < roots.size(); ++i) {
    slots =
        std::max(slots, static_cast<int64_t>(i) + SlotsOfSubtree(roots[i].end - roots[i].begin));
  }
  return slots - 1;
}

}  // namespace muster::plan
