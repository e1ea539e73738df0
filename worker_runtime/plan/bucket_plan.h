// Which gradients are reduced together, and which parameters are gathered together.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/mesh.h"
#include "worker_runtime/plan/parameter_info.h"
#include "worker_runtime/plan/use_trace.h"

namespace muster::plan {

// The ranks that have a bucket in common.
struct BucketGroups {
  Shards shards;  // hold it together; one rank: it is whole
  Shards near;    // share its parameters between two uses, of these; one rank: none do
  // Numbers of Program::groups.
  int sums = 0;        // find gradients of it
  int copies = kNone;  // hold the same sums in the end; kNone: no other does
  friend bool operator==(const BucketGroups&, const BucketGroups&) = default;
};

// A range of blocks, and the neighbouring parameters [first_parameter, end_parameter) that have
// elements in it; of them those that are frozen, or those that are not. A parameter that lies
// across a cut belongs to both buckets.
struct Bucket {
  BlockRange blocks;
  int first_parameter = 0;
  int end_parameter = 0;
  bool frozen = false;    // nothing of it is reduced or updated
  bool gathered = false;  // its parameters rest as shards, else whole
  BlockRange owned;       // the rank's own: what it updates, and what it gives to checkpoints
  BucketGroups groups;
  // Backward passes come to it, not to its units (Entry::unit): it is of whole parameters.
  bool entered = false;
  // What it takes where it lies whole, with the padding that makes its shards alike.
  int64_t padded_blocks() const { return groups.shards.PaddedOf(blocks.num_blocks()); }
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

struct BucketOptions {
  int64_t bytes_per_element = 4;
  int64_t bytes_max = 25 << 20;
  int64_t first_bytes = 1 << 20;
  // Buckets are multiples of so many blocks, but for one smaller than that: the ranks that share
  // them, so that shards are alike and need no padding.
  int64_t multiple = 1;
};

// Buckets of the layout's blocks `whole`, the last blocks first, because gradients become ready in
// reverse order of the forward pass. The first bucket is small, so that its reduction starts early.
//
// Shapes:  buckets cover every block of `whole` once; each ends where the one before begins.
// Errors:  none; a bound below one multiple makes buckets of one multiple.
// Source:  Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3
std::vector<Bucket> PlanBuckets(absl::Span<const ParameterInfo> parameters,
                                const BlockLayout& layout, BlockRange whole,
                                const BucketOptions& options);

// Buckets of whole units: each is gathered and given up as one. Neighbours share a bucket up to
// `options.bytes_max`; the other options do not count.
std::vector<Bucket> PlanUnitBuckets(const BlockLayout& layout, BlockRange whole,
                                    const BucketOptions& options);

// Buckets of whole parameters, the last first, of about `options.bytes_max`; the other options do
// not count. A backward pass has finished a bucket when it comes to another and not back again.
//
// A bucket begins with a parameter that begins with a block: most of a Llama's do, and the first of
// each unit does.
//
// Shapes: as PlanBuckets. Errors: none; where `trace` or the layout allows no cut the bucket grows.
std::vector<Bucket> PlanParameterBuckets(absl::Span<const ParameterInfo> parameters,
                                         const BlockLayout& layout, BlockRange whole,
                                         const UseTrace& trace, const BucketOptions& options);

// One bucket for each unit with frozen parameters in the blocks `whole`, in the order of units.
std::vector<Bucket> PlanFrozenBuckets(absl::Span<const ParameterInfo> parameters,
                                      const BlockLayout& layout, BlockRange whole);

}  // namespace muster::plan
