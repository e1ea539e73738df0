// ZB-V: each rank has one stage on the way down and one on the way back up.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {
namespace {

// The passes of one rank. The pattern is that of at least 2p - 1 micro-batches; of fewer, those
// that are not there are left out.
class RankOfV {
 public:
  RankOfV(const ScheduleShape& shape, int rank)
      : shape_(shape),
        rank_(rank),
        pattern_(std::max<int64_t>(shape.micro_batches, 2 * shape.ranks - 1)) {}

  std::vector<StagePass> Run() {
    const int down = 0;
    const int up = 1;
    const int left = shape_.ranks - rank_;  // ranks from this one on
    Repeat(2 * left - 1, [&] { Forward(down); });
    Repeat(rank_, [&] {
      Forward(up);
      Forward(down);
    });
    Repeat(left, [&] {
      Forward(up);
      Backward(up);
    });
    while (forward_[up] < pattern_) {
      if (forward_[down] < pattern_) Forward(down);
      Backward(down);
      Forward(up);
      Backward(up);
    }
    Repeat(rank_, [&] {
      Input(down);
      Input(up);
    });
    Repeat(left, [&] { Backward(down); });
    for (const int way : {up, down}) {
      while (weight_[way] < input_[way]) Weight(way);
    }
    return std::move(passes_);
  }

 private:
  template <typename Act>
  static void Repeat(int times, Act act) {
    for (int i = 0; i < times; ++i) act();
  }
  void Add(PassKind kind, int way, std::array<int64_t, 2>& count) {
    const int64_t micro_batch = count[way]++;
    if (micro_batch >= shape_.micro_batches) return;
    const int stage = way == 0 ? rank_ : 2 * shape_.ranks - 1 - rank_;
    passes_.push_back({kind, stage, micro_batch});
  }
  void Forward(int way) { Add(PassKind::kForward, way, forward_); }
  void Input(int way) { Add(PassKind::kInputGradient, way, input_); }
  void Weight(int way) { Add(PassKind::kWeightGradient, way, weight_); }
  void Backward(int way) {
    Input(way);
    Weight(way);
  }

  const ScheduleShape& shape_;
  const int rank_;
  const int64_t pattern_;  // micro-batches
  // What is done of the stage on the way down, and of the one on the way up.
  std::array<int64_t, 2> forward_ = {};
  std::array<int64_t, 2> input_ = {};
  std::array<int64_t, 2> weight_ = {};
  std::vector<StagePass> passes_;
};

}  // namespace

absl::StatusOr<Schedule> ZeroBubbleV(const ScheduleShape& shape) {
  if (shape.stages_per_rank != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("zbv has two stages per rank, and ", shape.stages_per_rank,
                     shape.stages_per_rank == 1 ? " is asked for; zb-h1 has one"
                                                : " are asked for; interleaved has as many"));
  }
  Schedule schedule = {.name = "zbv", .micro_batches = shape.micro_batches};
  for (int stage = 0; stage < 2 * shape.ranks; ++stage) {
    schedule.rank_of_stage.push_back(std::min(stage, 2 * shape.ranks - 1 - stage));
  }
  for (int rank = 0; rank < shape.ranks; ++rank) {
    schedule.passes.push_back(RankOfV(shape, rank).Run());
  }
  return schedule;
}

}  // namespace muster::plan
