// How sharded parameters are gathered, as a part of a plan (muster/plan.h).
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace muster {

// When sharded parameters are gathered for the backward pass: as the unit before begins to compute
// (most overlap, one unit more in memory), once that has computed but before its gradients are
// reduced, or after that.
enum class BackwardPrefetch : uint8_t { kPre, kPost, kNone };
absl::string_view ToString(BackwardPrefetch prefetch);

// How sharded parameters are gathered for their use, unit by unit, and for how long. Of parameters
// that are replicated nothing here counts.
struct GatherPlan {
  static constexpr int64_t kNoLimit = int64_t{1} << 48;

  // Whether what was gathered for the forward pass is given up after it, and gathered again for the
  // backward pass.
  bool reshard_after_forward = false;
  // Ranks, neighbours, that keep the parameters sharded among themselves from their first use in a
  // step until the update, so that later uses gather from them. 0: only the shard group does.
  int64_t secondary_ranks = 0;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  // Gathered ahead of their use are at most so many units, and further ones only while they have
  // fewer elements.
  int64_t prefetch_units = 1;
  int64_t prefetch_elements = kNoLimit;
  // Gathered at once are at most so many elements.
  int64_t max_live_elements = kNoLimit;
  // What is used again within so many elements of other units stays.
  int64_t max_reuse_distance = 0;
  // Units of at most so many elements are held whole, in the order of declaration, up to so many in
  // all.
  int64_t persistence_threshold = 0;
  int64_t persistence_total = kNoLimit;
  friend bool operator==(const GatherPlan&, const GatherPlan&) = default;
};

}  // namespace muster
