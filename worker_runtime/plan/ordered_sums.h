// How a rank adds the gradients of its micro-batches in ordered mode, with few buffers.
//
// The leaves of the sum tree (muster/sum_tree.h) are the size * accumulation micro-batches of a
// step; rank r computes [r * accumulation, (r + 1) * accumulation) of them, left to right. As soon
// as two sibling subtrees are complete on the rank they are added, so that only the roots of
// complete subtrees wait in buffers (slots). What is left at the end are the roots that
// Communicator::AllReduceSubtrees takes.
//
//   accumulation 4, one rank:  0 -> slot 0;  1 -> slot 1, 0 += 1;  2 -> slot 1;  3 -> slot 2,
//                              1 += 2, 0 += 1;  the root is in slot 0
//
// Threads: pure.
// Source:  worker_runtime/README.md "Bits".
#pragma once

#include <cstdint>
#include <vector>

namespace muster::plan {

// left_slot = left + right, in this order; right_slot becomes free.
struct Merge {
  int left_slot = 0;
  int right_slot = 0;
  friend bool operator==(const Merge&, const Merge&) = default;
};

// One micro-batch: its gradient is written to `slot` (the lowest free one), then `merges` follow.
struct OrderedLeaf {
  int slot = 0;
  std::vector<Merge> merges;
  friend bool operator==(const OrderedLeaf&, const OrderedLeaf&) = default;
};

struct OrderedSums {
  int num_slots = 0;
  std::vector<OrderedLeaf> leaves;  // [accumulation], left to right
  // The slots in which the roots of CoverWithSubtrees of the rank's range are in the end, left to
  // right.
  std::vector<int> root_slots;
  friend bool operator==(const OrderedSums&, const OrderedSums&) = default;
};

// What rank `rank` of `size` does; 0 <= rank < size, accumulation >= 1 (checked).
OrderedSums PlanOrderedSums(int64_t rank, int64_t size, int64_t accumulation);

// Gradient buffers that ordered mode takes beside the one that every mode has: num_slots - 1, about
// log2(accumulation), without making the plan.
int64_t OrderedPartialSums(int64_t rank, int64_t size, int64_t accumulation);

}  // namespace muster::plan
