// When the parameters of each unit are gathered and given up, from the order in which a step uses
// them.
//
// Threads: pure.
// Source: DeepSpeed's partitioned parameter coordinator (prefetch, reuse distance, live
// parameters); FullyShardedDataParallel (backward prefetch). Differs: the order is known before the
// step, so what is given up for the limit of live parameters is what is used last from then on.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "muster/plan.h"

namespace muster::plan {

struct UnitUse {
  int unit = 0;
  int64_t micro_batch = 0;
  bool is_backward = false;
};

// What happens as a pass comes to a use, in this order.
struct UseStep {
  std::vector<int> release;  // units
  std::vector<int> gather;   // first its own, if it is not there
};

struct UseSchedule {
  std::vector<UseStep> steps;  // [uses]
  std::vector<int> release;    // after the last use
  int64_t live_elements = 0;   // gathered at once, at most
};

// Shapes: unit_elements [units]: of those that are gathered, 0 of others.
UseSchedule ScheduleUses(absl::Span<const UnitUse> uses, absl::Span<const int64_t> unit_elements,
                         const GatherPlan& plan);

}  // namespace muster::plan
