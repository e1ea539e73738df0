// How a program scales: the same program at several numbers of ranks, its rate at each, and where
// the rest went. What is measured comes from commands/bench_command.cc.
//
// Pure values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster::launcher {

// A rank at one instant. -1: not known.
struct RankAt {
  int64_t step = -1;
  double waited_seconds = -1;  // for other ranks, since it began
  double cpus = -1;            // that it has used since the look before
};

// One number of ranks, measured.
struct ScalingRow {
  int ranks = 0;
  double steps_per_second = 0;
  double waiting = -1;  // share of the ranks' time; -1: not known
  double cpus = -1;     // of one rank
};

// Takes looks at a job as they come, and measures between two changes of the slowest rank's step:
// the first after two whole steps, and the last that was seen.
class ScalingMeter {
 public:
  // `at` in seconds, never less than before; every rank of the job.
  void Look(double at, const std::vector<RankAt>& ranks);
  bool has_steps() const { return last_step_ >= 0; }
  // When the slowest rank's step changed last; 0: it has not.
  double changed_at() const { return changed_at_; }
  // Seconds between the two changes; 0: the second has not come.
  double measured() const { return end_ ? end_->at - begin_->at : 0; }
  // None before the second change.
  std::optional<ScalingRow> Row() const;

 private:
  struct Change {
    double at = 0;
    int64_t step = 0;
    double waited_seconds = -1;
  };

  int num_ranks_ = 0;
  int64_t first_step_ = -1;
  int64_t last_step_ = -1;
  double changed_at_ = 0;
  double looked_at_ = 0;
  double cpu_seconds_ = 0;  // of one rank, since `begin_`
  double cpu_time_ = 0;     // in which those were counted
  std::optional<Change> begin_;
  std::optional<Change> end_;
};

struct ScalingView {
  bool global_batch = false;  // ranks share the batch; else each has its own
  int cpus = 0;               // of this node
  bool on_gpus = false;
};

// The share of the ideal rate that `row` reaches, compared with `first`: N ranks are to do as many
// steps a second as one, or N times as many where they share the batch.
double EfficiencyOf(const ScalingRow& row, const ScalingRow& first, bool global_batch);

// A table with a line for each row, and what the loss of each is made of. `rows` is not empty, the
// first has the fewest ranks.
std::string ScalingText(const std::vector<ScalingRow>& rows, const ScalingView& view);

}  // namespace muster::launcher
