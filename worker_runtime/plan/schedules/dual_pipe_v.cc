// DualPipeV: in the middle each rank goes forward on one way and backward on the other.
#include <algorithm>
#include <deque>

#include "worker_runtime/plan/schedules/generators.h"
#include "worker_runtime/plan/schedules/v_shape.h"

namespace muster::plan {

absl::StatusOr<Schedule> DualPipeV(const ScheduleShape& shape) {
  using enum Way;
  const int64_t pattern = std::max<int64_t>(shape.micro_batches, 2 * shape.ranks);
  return ScheduleOfV("dualpipev", shape, [&](int rank, PassesOfV& passes) {
    const int above = shape.ranks - rank - 1;  // ranks behind this one on the way down
    const int upto = rank + 1;                 // ranks from the first to this one
    Repeat(2 * above, [&] { passes.Forward(kDown); });
    Repeat(upto, [&] {
      passes.Forward(kDown);
      passes.Forward(kUp);
    });
    Repeat(above, [&] {
      passes.Backward(kUp);
      passes.Forward(kUp);
    });
    Repeat(pattern - 2 * shape.ranks + upto, [&] {
      passes.Forward(kDown);
      passes.Backward(kUp);
      passes.Forward(kUp);
      passes.Backward(kDown);
    });
    Repeat(above, [&] {
      passes.Backward(kUp);
      passes.Forward(kUp);
      passes.Backward(kDown);
    });
    // Gradients of weights wait from the middle of what is left on, to fill the time in which ranks
    // would.
    std::deque<Way> pending;
    for (int i = 0; i < 2 * upto; ++i) {
      const Way way = i % 2 == 0 ? kUp : kDown;
      if (i < upto) {
        passes.Backward(way);
        continue;
      }
      passes.Inputs(way);
      pending.push_back(way);
    }
    const auto weights = [&] {
      passes.Weights(pending.front());
      pending.pop_front();
    };
    Repeat(above, [&] {
      weights();
      passes.Inputs(kDown);
      pending.push_back(kDown);
    });
    while (!pending.empty()) weights();
  });
}

}  // namespace muster::plan
