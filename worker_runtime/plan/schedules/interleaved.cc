// Interleaved 1F1B: a rank has several stages, so that a micro-batch comes round to it several
// times, and what ranks wait for is as much shorter.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {
namespace {

int64_t Rounds(int64_t micro_batches, int64_t ranks) {
  return std::max<int64_t>(1, micro_batches / ranks);
}

absl::Status Check(const ScheduleShape& shape) {
  if (shape.stages_per_rank == 1) {
    return absl::InvalidArgumentError(
        "interleaved needs several stages per rank, and 1 is asked for; with one it is 1f1b");
  }
  const auto fits = [&](int64_t m) { return m % Rounds(m, shape.ranks) == 0; };
  const int64_t m = shape.micro_batches;
  if (fits(m)) return absl::OkStatus();
  // Multiples of the ranks fit, so both are near.
  int64_t fewer = m;
  while (!fits(fewer)) --fewer;
  int64_t more = m;
  while (!fits(more)) ++more;
  return absl::InvalidArgumentError(absl::StrCat(
      "interleaved over ", shape.ranks, " ranks cannot divide ", m, " micro-batches into ",
      Rounds(m, shape.ranks), " rounds; the nearest that it can are ", fewer, " and ", more));
}

// The passes of a rank in one direction, in their order.
class Order {
 public:
  Order(const ScheduleShape& shape, int rank)
      : shape_(shape),
        rank_(rank),
        round_(shape.micro_batches / Rounds(shape.micro_batches, shape.ranks)) {}

  int64_t round() const { return round_; }

  StagePass At(PassKind kind, int64_t index) const {
    const int64_t stages = shape_.stages_per_rank;
    const int64_t within = index % (round_ * stages);
    int64_t turn = within / round_;
    if (kind != PassKind::kForward) turn = stages - 1 - turn;
    return {kind, static_cast<int>(turn) * shape_.ranks + rank_,
            index / (round_ * stages) * round_ + within % round_};
  }

 private:
  const ScheduleShape& shape_;
  const int rank_;
  const int64_t round_;  // micro-batches
};

}  // namespace

absl::StatusOr<Schedule> Interleaved(const ScheduleShape& shape) {
  MUSTER_RETURN_IF_ERROR(Check(shape));
  Schedule schedule = {.name = "interleaved", .micro_batches = shape.micro_batches};
  for (int stage = 0; stage < shape.ranks * shape.stages_per_rank; ++stage) {
    schedule.rank_of_stage.push_back(stage % shape.ranks);
  }
  const int64_t all = shape.micro_batches * shape.stages_per_rank;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const Order order(shape, rank);
    const int64_t ahead =
        (shape.stages_per_rank - 1) * order.round() + 2 * (shape.ranks - 1 - rank) + 1;
    std::vector<StagePass>& passes = schedule.passes.emplace_back();
    int64_t forward = 0;
    while (forward < std::min(all, ahead)) {
      passes.push_back(order.At(PassKind::kForward, forward++));
    }
    for (int64_t backward = 0; backward < all; ++backward) {
      passes.push_back(order.At(PassKind::kBackward, backward));
      if (forward < all) passes.push_back(order.At(PassKind::kForward, forward++));
    }
  }
  return schedule;
}

}  // namespace muster::plan
