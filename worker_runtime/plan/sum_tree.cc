// The one tree over the micro-batches of a step, and which of its subtrees a range covers.
#include "muster/sum_tree.h"

#include <bit>

#include "proto/base/status_macros.h"

namespace muster {
namespace {

void Cover(LeafRange wanted, LeafRange subtree, std::vector<LeafRange>& out) {
  if (wanted.end <= subtree.begin || subtree.end <= wanted.begin) return;
  if (wanted.begin <= subtree.begin && subtree.end <= wanted.end) {
    out.push_back(subtree);
    return;
  }
  const int64_t middle = subtree.begin + SumTreeSplit(subtree.end - subtree.begin);
  Cover(wanted, {subtree.begin, middle}, out);
  Cover(wanted, {middle, subtree.end}, out);
}

}  // namespace

int64_t SumTreeSplit(int64_t num_leaves) {
  MUSTER_CHECK(num_leaves > 1);
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_leaves - 1)));
}

std::vector<LeafRange> CoverWithSubtrees(LeafRange range, int64_t num_leaves) {
  MUSTER_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= num_leaves);
  std::vector<LeafRange> out;
  if (range.begin < range.end) Cover(range, {0, num_leaves}, out);
  return out;
}

double TreeSum(absl::Span<const double> values) {
  if (values.empty()) return 0;
  if (values.size() == 1) return values[0];
  const size_t left = SumTreeSplit(static_cast<int64_t>(values.size()));
  return TreeSum(values.first(left)) + TreeSum(values.subspan(left));
}

}  // namespace muster
