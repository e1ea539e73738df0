// The place of each parameter in the flat buffers of values, gradients and moments, and who owns
// what.
//
// A unit's parameters lie side by side, each at a multiple of kParameterAlignment; the unit is
// filled up to whole blocks, and so are those of its parameters in turn which tensor ranks cut, and
// which they do not. Everything that is cut (shards, buckets, norms, hashes) is cut between blocks,
// so that no cut changes a number.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/plan/parameter_info.h"

namespace muster::plan {

// Parameters start at multiples of this many elements, so that vector kernels see aligned memory.
inline constexpr int64_t kParameterAlignment = 16;
// What norms are taken over (kernels/sum_of_squares.h), and the smallest piece of a shard or
// bucket.
inline constexpr int64_t kBlockElements = 1024;

// Blocks [begin, end) of a flat buffer.
struct BlockRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t num_blocks() const { return end - begin; }
  int64_t first_element() const { return begin * kBlockElements; }
  int64_t num_elements() const { return num_blocks() * kBlockElements; }
  bool Overlaps(const BlockRange& other) const { return begin < other.end && other.begin < end; }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

// Blocks of what learns, [0, count).
struct LearnedBlocks {
  int64_t count = 0;
  // Blocks of parameters of which each tensor rank holds another part, ascending; all elements of
  // the others are the same on all of these ranks.
  std::vector<BlockRange> cut;
  friend bool operator==(const LearnedBlocks&, const LearnedBlocks&) = default;
};

// Elements between parameters are padding and always zero.
struct BlockLayout {
  // [num_parameters], in elements, ascending; a frozen one has no elements here.
  std::vector<int64_t> offsets;
  std::vector<BlockRange> units;  // [num_units], one after the other; empty for a unit without any
  int64_t num_blocks = 0;         // of what learns
  // Frozen parameters lie in the same way in blocks of their own, which are numbered on: what they
  // are changes no block that has gradients. [num_parameters]: kNotFrozen for those that learn.
  static constexpr int64_t kNotFrozen = -1;
  std::vector<int64_t> frozen_offsets;
  std::vector<BlockRange> frozen_units;  // [num_units]
  std::vector<BlockRange> cut;           // LearnedBlocks has it

  int64_t num_elements() const { return num_blocks * kBlockElements; }
  // The element at which a parameter begins, frozen or not.
  int64_t OffsetOf(int parameter) const {
    const int64_t frozen = frozen_offsets[parameter];
    return frozen == kNotFrozen ? offsets[parameter] : frozen;
  }
};

// Lays parameters out in the order of declaration, which is that of units. The layout depends on
// the parameters alone, never on ranks or buckets, so that norms and hashes do not either.
BlockLayout PlanBlockLayout(absl::Span<const ParameterInfo> parameters);

// What rank `rank` of `size` owns of `whole`: ceil(blocks / size) blocks, the last ranks fewer or
// none.
BlockRange ShardOf(BlockRange whole, int64_t rank, int64_t size);

}  // namespace muster::plan
