#include "launcher/bench/scaling.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace muster::launcher {
namespace {

// The first steps compile, allocate and fill caches.
constexpr int64_t kWarmUpSteps = 2;

std::string Percent(double share) {
  return share < 0 ? "-" : absl::StrFormat("%.0f %%", 100 * share);
}

// What of the time is lost is waiting, or the ranks' own work that takes longer than it would.
std::string LossOf(const ScalingRow& row, const ScalingRow& first, const ScalingView& view) {
  const double lost = 1 - EfficiencyOf(row, first, view.global_batch);
  const std::string at = absl::StrCat("At ", row.ranks, " ranks ");
  if (lost < 0.01) return absl::StrCat(at, "nothing is lost.\n");
  std::string text = absl::StrCat(at, Percent(lost), " is lost");
  if (row.waiting < 0) {
    absl::StrAppend(&text, "; what to is not known, since the program does not tell its waiting");
  } else {
    const double waiting =
        std::min(lost, std::max(0.0, row.waiting - std::max(0.0, first.waiting)));
    absl::StrAppend(&text, ": ", Percent(waiting), " to waiting for other ranks, ",
                    Percent(lost - waiting), " to slower work of each rank");
  }
  if (!view.on_gpus && row.ranks > view.cpus && first.ranks <= view.cpus) {
    absl::StrAppend(&text, "; ", row.ranks, " ranks take turns on ", view.cpus, " CPUs");
  }
  return text + ".\n";
}

}  // namespace

void ScalingMeter::Look(double at, const std::vector<RankAt>& ranks) {
  if (ranks.empty()) return;
  num_ranks_ = static_cast<int>(ranks.size());
  int64_t slowest = ranks.front().step;
  double waited = 0, cpus = 0;
  bool waiting_is_known = true, cpus_are_known = true;
  for (const RankAt& rank : ranks) {
    slowest = std::min(slowest, rank.step);
    waiting_is_known = waiting_is_known && rank.waited_seconds >= 0;
    cpus_are_known = cpus_are_known && rank.cpus >= 0;
    waited += rank.waited_seconds / num_ranks_;
    cpus += rank.cpus / num_ranks_;
  }
  if (begin_ && cpus_are_known) {
    cpu_seconds_ += cpus * (at - looked_at_);
    cpu_time_ += at - looked_at_;
  }
  looked_at_ = at;
  if (slowest < 0) return;
  if (first_step_ < 0) first_step_ = last_step_ = slowest;
  if (slowest <= last_step_) return;
  last_step_ = slowest;
  changed_at_ = at;
  const Change change{.at = at, .step = slowest, .waited_seconds = waiting_is_known ? waited : -1};
  if (begin_) {
    end_ = change;
  } else if (slowest > first_step_ + kWarmUpSteps) {
    begin_ = change;
  }
}

std::optional<ScalingRow> ScalingMeter::Row() const {
  if (!end_ || measured() <= 0) return std::nullopt;
  ScalingRow row{.ranks = num_ranks_,
                 .steps_per_second = static_cast<double>(end_->step - begin_->step) / measured()};
  if (begin_->waited_seconds >= 0 && end_->waited_seconds >= 0) {
    row.waiting = (end_->waited_seconds - begin_->waited_seconds) / measured();
  }
  if (cpu_time_ > 0) row.cpus = cpu_seconds_ / cpu_time_;
  return row;
}

double EfficiencyOf(const ScalingRow& row, const ScalingRow& first, bool global_batch) {
  const double ideal = global_batch ? static_cast<double>(row.ranks) / first.ranks : 1.0;
  return row.steps_per_second / (first.steps_per_second * ideal);
}

std::string ScalingText(const std::vector<ScalingRow>& rows, const ScalingView& view) {
  std::string text = absl::StrFormat("%6s  %10s  %10s  %8s  %13s\n", "ranks", "steps/s",
                                     "efficiency", "waiting", "CPUs per rank");
  for (const ScalingRow& row : rows) {
    const std::string cpus = row.cpus < 0 ? "-" : absl::StrFormat("%.2f", row.cpus);
    absl::StrAppend(
        &text, absl::StrFormat("%6d  %10.4g  %10s  %8s  %13s\n", row.ranks, row.steps_per_second,
                               Percent(EfficiencyOf(row, rows.front(), view.global_batch)),
                               Percent(row.waiting), cpus));
  }
  absl::StrAppend(&text, "\n");
  for (size_t i = 1; i < rows.size(); ++i) {
    absl::StrAppend(&text, LossOf(rows[i], rows.front(), view));
  }
  return text;
}

}  // namespace muster::launcher
