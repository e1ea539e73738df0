// Where each parameter lies in the flat buffers of values, gradients and moments.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/plan/parameter_info.h"

namespace muster::plan {

// Parameters start at multiples of this many elements, so that vector kernels see aligned memory.
inline constexpr int64_t kParameterAlignment = 16;
// The whole is a multiple of this: norms are taken over blocks of it (kernels/sum_of_squares.h),
// and shards are whole blocks.
inline constexpr int64_t kFlatAlignment = 1024;

// Elements between parameters are padding and always zero.
struct FlatLayout {
  std::vector<int64_t> offsets;  // [num_parameters], in elements, ascending
  int64_t num_elements = 0;
};

// In the order of declaration. Depends on the parameters alone, never on ranks or buckets, so that
// norms and hashes do not either.
//
// Threads: pure.
FlatLayout PlanFlatLayout(absl::Span<const ParameterInfo> parameters);

}  // namespace muster::plan
