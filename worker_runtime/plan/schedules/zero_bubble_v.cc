// ZB-V: each rank has one stage on the way down and one on the way back up.
#include <algorithm>

#include "worker_runtime/plan/schedules/generators.h"
#include "worker_runtime/plan/schedules/v_shape.h"

namespace muster::plan {

absl::StatusOr<Schedule> ZeroBubbleV(const ScheduleShape& shape) {
  using enum Way;
  const int64_t pattern = std::max<int64_t>(shape.micro_batches, 2 * shape.ranks - 1);
  return ScheduleOfV("zbv", shape, [&](int rank, PassesOfV& passes) {
    const int left = shape.ranks - rank;  // ranks from this one on
    Repeat(2 * left - 1, [&] { passes.Forward(kDown); });
    Repeat(rank, [&] {
      passes.Forward(kUp);
      passes.Forward(kDown);
    });
    Repeat(left, [&] {
      passes.Forward(kUp);
      passes.Backward(kUp);
    });
    while (passes.num_forward(kUp) < pattern) {
      if (passes.num_forward(kDown) < pattern) passes.Forward(kDown);
      passes.Backward(kDown);
      passes.Forward(kUp);
      passes.Backward(kUp);
    }
    Repeat(rank, [&] {
      passes.Inputs(kDown);
      passes.Inputs(kUp);
    });
    Repeat(left, [&] { passes.Backward(kDown); });
    for (const Way way : {kUp, kDown}) {
      while (passes.num_pending(way) > 0) passes.Weights(way);
    }
  });
}

}  // namespace muster::plan
