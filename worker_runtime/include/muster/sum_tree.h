// The tree of ordered sums: over n leaves, split at the largest power of two below n.
//
//   n = 6:   ((0+1)+(2+3)) + (4+5)
//
// Any range of leaves is covered by few complete subtrees, so that ranks can add their own leaves
// and exchange only roots, and the bits of the sum do not depend on where the ranks cut it.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace muster {

// Leaves [begin, end).
struct LeafRange {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const LeafRange&, const LeafRange&) = default;
};

// The leaf at which the subtree over `num_leaves` > 1 leaves is split: the largest power of two
// below it.
int64_t SumTreeSplit(int64_t num_leaves);

// The largest subtrees of the tree over `num_leaves` leaves that lie inside `range`, left to right;
// together they are `range`.
std::vector<LeafRange> CoverWithSubtrees(LeafRange range, int64_t num_leaves);

// The sum of `values` by the tree over them; 0 if there are none.
double TreeSum(absl::Span<const double> values);

}  // namespace muster
