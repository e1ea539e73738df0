#include "worker_runtime/cuda/gelu_ways.h"

#include <algorithm>

#include "absl/time/time.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

// The least time of so many counts: what disturbs a run only lengthens it.
constexpr int kTimes = 3;

}  // namespace

GeluWays::Shape GeluWays::ShapeOf(const CudaProduct& p) {
  return {p.m, p.n, p.k, p.transpose_a, p.transpose_b, p.type, p.result, p.epilogue};
}

std::optional<bool> GeluWays::Known(const CudaProduct& product) const {
  base::MutexLock lock(mu_);
  const auto found = prefers_passes_.find(ShapeOf(product));
  if (found == prefers_passes_.end()) return std::nullopt;
  return found->second;
}

bool GeluWays::PrefersPasses(const CudaProduct& product) const {
  return Known(product).value_or(false);
}

absl::Status GeluWays::Learn(CudaApi& cuda, CudaStream stream, const CudaProduct& product,
                             absl::FunctionRef<bool()> in_one_pass,
                             absl::FunctionRef<void()> in_passes) {
  if (Known(product).has_value()) return absl::OkStatus();
  absl::Duration once = absl::InfiniteDuration(), passes = absl::InfiniteDuration();
  bool has_it = in_one_pass();
  if (has_it) in_passes();
  for (int i = 0; has_it && i < kTimes; ++i) {
    MUSTER_ASSIGN_OR_RETURN(const absl::Duration of_once,
                            cuda.TimeOf(stream, [&] { has_it = in_one_pass() && has_it; }));
    MUSTER_ASSIGN_OR_RETURN(const absl::Duration of_passes, cuda.TimeOf(stream, in_passes));
    once = std::min(once, of_once);
    passes = std::min(passes, of_passes);
  }
  base::MutexLock lock(mu_);
  prefers_passes_.emplace(ShapeOf(product), !has_it || passes < once);
  return absl::OkStatus();
}

}  // namespace muster
