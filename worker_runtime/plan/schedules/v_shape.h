// What schedules share whose ranks have two stages each, in a V: one on the way down, and one on
// the way back up, so that the last stage lies beside the first.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/plan/schedules/generators.h"
#include "worker_runtime/plan/schedules/schedule.h"

namespace muster::plan {

enum class Way : uint8_t { kDown, kUp };

// The passes of one rank, written down in their order: each way counts its micro-batches. A pattern
// is that of many micro-batches; of fewer, those that are not there are left out.
//
// Threads: thread-compatible.
class PassesOfV {
 public:
  PassesOfV(const ScheduleShape& shape, int rank) : shape_(shape), rank_(rank) {}

  void Forward(Way way) { Add(PassKind::kForward, way); }
  void Inputs(Way way) { Add(PassKind::kInputGradient, way); }
  void Weights(Way way) { Add(PassKind::kWeightGradient, way); }
  void Backward(Way way) {
    Inputs(way);
    Weights(way);
  }

  int64_t num_forward(Way way) const { return NumOf(PassKind::kForward, way); }
  // Gradients of inputs whose weights' have not come yet.
  int64_t num_pending(Way way) const {
    return NumOf(PassKind::kInputGradient, way) - NumOf(PassKind::kWeightGradient, way);
  }
  std::vector<StagePass> Take() { return std::move(passes_); }

 private:
  void Add(PassKind kind, Way way);
  int64_t NumOf(PassKind kind, Way way) const {
    return count_[static_cast<size_t>(way)][static_cast<size_t>(kind)];
  }

  const ScheduleShape shape_;
  const int rank_;
  std::array<std::array<int64_t, 4>, 2> count_ = {};  // by way and PassKind
  std::vector<StagePass> passes_;
};

inline void Repeat(int64_t times, absl::FunctionRef<void()> act) {
  for (int64_t i = 0; i < times; ++i) act();
}

// The schedule of that name, of which `pass` writes down the passes of each rank.
//
// Errors: kInvalidArgument: `shape` has not two stages per rank.
absl::StatusOr<Schedule> ScheduleOfV(absl::string_view name, const ScheduleShape& shape,
                                     absl::FunctionRef<void(int rank, PassesOfV& passes)> pass);

}  // namespace muster::plan
