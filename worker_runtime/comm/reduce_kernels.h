// Element-wise arithmetic of reductions on the host.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "muster/communicator.h"
#include "muster/sum_tree.h"

namespace muster::comm {

// The type in which elements of `dtype` are reduced: f32 for bf16 and f16, else its own.
DType AccumulationType(DType dtype);

// into[i] = into[i] (op) from[i], for a type that accumulates in itself. Integers wrap around.
void Accumulate(DType dtype, ReduceOp op, void* into, const void* from, int64_t count);
// out[i] = a[i] (op) b[i]; `out` may be one of the two.
void Combine(DType dtype, ReduceOp op, void* out, const void* a, const void* b, int64_t count);

// Convert between a type and its accumulation type, and copy where they are one. Narrowing rounds
// to nearest, ties to even.
void Widen(DType dtype, void* wide, const void* narrow, int64_t count);
void Narrow(DType dtype, void* narrow, const void* wide, int64_t count);

// Ranges of the tree's leaves that the ranks of an ordered sum contribute, in order of ranks.
std::vector<LeafRange> OrderedContributions(int size, int64_t leaves_per_rank);
// How many of them come from ranks below `rank`.
int64_t NumContributionsBefore(int rank, int size, int64_t leaves_per_rank);
// Contributions of the rank that has the most.
int64_t MostContributions(int size, int64_t leaves_per_rank);

// Combines subtree roots by the tree of muster/sum_tree.h into roots[0], overwriting all. `dtype`
// accumulates in itself.
//
// Shapes: roots[i] [count], the sum of the leaves ranges[i]; the ranges cover all leaves, left to
// right.
void CombineByTree(DType dtype, ReduceOp op, absl::Span<const LeafRange> ranges,
                   absl::Span<void* const> roots, int64_t count);

// Bytes that start at element `index`.
inline uint8_t* At(void* base, DType dtype, int64_t index) {
  return static_cast<uint8_t*>(base) + index * static_cast<int64_t>(SizeOf(dtype));
}
inline const uint8_t* At(const void* base, DType dtype, int64_t index) {
  return static_cast<const uint8_t*>(base) + index * static_cast<int64_t>(SizeOf(dtype));
}

}  // namespace muster::comm
