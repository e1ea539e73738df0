// Which gradients are reduced together.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/plan/flat_layout.h"
#include "worker_runtime/plan/parameter_info.h"

namespace muster::plan {

// Neighbouring parameters [first_parameter, end_parameter) and the elements
// [first_element, end_element) of the flat buffers that hold them, padding included.
struct Bucket {
  int first_parameter = 0;
  int end_parameter = 0;
  int64_t first_element = 0;
  int64_t end_element = 0;
  int64_t num_elements() const { return end_element - first_element; }
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

struct BucketOptions {
  int64_t bytes_per_element = 4;
  int64_t bytes_max = 25 << 20;
  int64_t first_bytes = 1 << 20;
};

// Last parameter first, because gradients become ready in reverse order of the forward pass. The
// first bucket is closed as soon as it has `first_bytes`, so that its reduction starts early.
//
// Shapes:  buckets cover every element of the layout once; each ends where the one before begins.
// Errors:  none; a parameter larger than the bound gets a bucket of its own.
// Threads: pure.
// Source:  Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3
std::vector<Bucket> PlanBuckets(absl::Span<const ParameterInfo> parameters,
                                const FlatLayout& layout, const BucketOptions& options);

}  // namespace muster::plan
