// Which group an element is updated with. Only `.cu` files include it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/simt.h"

namespace muster::kernels::cuda {

// Runs that a kernel gets with its arguments. They may be 4 KiB in all.
inline constexpr int kRunsAtOnce = 128;
struct RunsAtOnce {
  int count = 0;
  UpdateRun runs[kRunsAtOnce];
};

__device__ inline int GroupOf(const RunsAtOnce& runs, int64_t element) {
  int low = 0, high = runs.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (element < runs.runs[middle].end) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return runs.runs[low].group;
}

// Calls `launch(begin, runs, n)` for elements [begin, begin + n), whose runs end as many elements
// behind `begin`.
template <typename Launch>
LaunchError ForRunsAtOnce(UpdateRuns all, const Launch& launch) {
  int64_t begin = 0;
  for (size_t first = 0; first < all.count; first += kRunsAtOnce) {
    RunsAtOnce some;
    for (size_t i = first; i < all.count && some.count < kRunsAtOnce; ++i) {
      some.runs[some.count++] = {.end = all.runs[i].end - begin, .group = all.runs[i].group};
    }
    const int64_t n = some.runs[some.count - 1].end;
    if (const LaunchError error = launch(begin, some, n); error != nullptr) return error;
    begin += n;
  }
  return nullptr;
}

}  // namespace muster::kernels::cuda
