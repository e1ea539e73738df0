// Which gradients are reduced together.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/parameter_info.h"

namespace muster::plan {

// A range of blocks, and the neighbouring parameters [first_parameter, end_parameter) that have
// elements in it. A parameter that lies across a cut belongs to both buckets.
struct Bucket {
  BlockRange blocks;
  int first_parameter = 0;
  int end_parameter = 0;
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

}  // namespace muster::plan
