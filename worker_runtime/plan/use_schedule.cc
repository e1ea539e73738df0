#include "worker_runtime/plan/use_schedule.h"

#include <algorithm>

namespace muster::plan {
namespace {

class Scheduler {
 public:
  Scheduler(absl::Span<const UnitUse> uses, absl::Span<const int64_t> unit_elements,
            const GatherPlan& plan)
      : uses_(uses),
        elements_(unit_elements),
        plan_(plan),
        uses_of_(unit_elements.size()),
        is_live_(unit_elements.size()),
        is_ahead_(unit_elements.size()),
        elements_before_(uses.size() + 1) {
    for (size_t t = 0; t < uses.size(); ++t) {
      uses_of_[uses[t].unit].push_back(t);
      elements_before_[t + 1] = elements_before_[t] + unit_elements[uses[t].unit];
    }
    schedule_.steps.resize(uses.size());
  }

  UseSchedule Run() {
    for (size_t t = 0; t < uses_.size(); ++t) {
      now_ = t;
      UseStep& step = schedule_.steps[t];
      if (t > 0) GiveUpAfter(t - 1, step);
      Need(t, step);
      Prefetch(t, step);
    }
    for (size_t unit = 0; unit < is_live_.size(); ++unit) {
      if (is_live_[unit]) schedule_.release.push_back(static_cast<int>(unit));
    }
    return std::move(schedule_);
  }

 private:
  // The first use of `unit` from `t` on; uses_.size() if there is none.
  size_t NextUse(int unit, size_t t) const {
    const std::vector<size_t>& all = uses_of_[unit];
    const auto found = std::lower_bound(all.begin(), all.end(), t);
    return found == all.end() ? uses_.size() : *found;
  }

  bool IsKept(size_t t) const {
    const size_t next = NextUse(uses_[t].unit, t + 1);
    if (next == uses_.size()) return false;
    if (!plan_.reshard_after_forward && uses_[next].micro_batch == uses_[t].micro_batch) {
      return true;
    }
    return elements_before_[next] - elements_before_[t + 1] <= plan_.max_reuse_distance;
  }

  void GiveUpAfter(size_t t, UseStep& step) {
    if (is_live_[uses_[t].unit] && !IsKept(t)) Release(uses_[t].unit, step);
  }

  void Release(int unit, UseStep& step) {
    is_live_[unit] = false;
    live_ -= elements_[unit];
    gathered_until_ = std::min(gathered_until_, NextUse(unit, now_));
    step.release.push_back(unit);
  }

  void Gather(int unit, UseStep& step) {
    is_live_[unit] = true;
    live_ += elements_[unit];
    schedule_.live_elements = std::max(schedule_.live_elements, live_);
    step.gather.push_back(unit);
  }

  void Need(size_t t, UseStep& step) {
    const int unit = uses_[t].unit;
    TakeFromAhead(unit);
    if (elements_[unit] == 0 || is_live_[unit]) return;
    while (live_ + elements_[unit] > plan_.max_live_elements) {
      int last = -1;
      for (int other = 0; other < static_cast<int>(is_live_.size()); ++other) {
        if (!is_live_[other]) continue;
        if (last < 0 || NextUse(other, t) > NextUse(last, t)) last = other;
      }
      if (last < 0) break;
      TakeFromAhead(last);
      Release(last, step);
    }
    Gather(unit, step);
  }

  void Prefetch(size_t t, UseStep& step) {
    if (uses_[t].is_backward && plan_.backward_prefetch != BackwardPrefetch::kPre) return;
    for (gathered_until_ = std::max(gathered_until_, t + 1); gathered_until_ < uses_.size();
         ++gathered_until_) {
      if (units_ahead_ >= plan_.prefetch_units || elements_ahead_ >= plan_.prefetch_elements)
        return;
      const int unit = uses_[gathered_until_].unit;
      if (elements_[unit] == 0 || is_live_[unit]) continue;
      if (live_ + elements_[unit] > plan_.max_live_elements) return;
      Gather(unit, step);
      is_ahead_[unit] = true;
      ++units_ahead_;
      elements_ahead_ += elements_[unit];
    }
  }

  void TakeFromAhead(int unit) {
    if (!is_ahead_[unit]) return;
    is_ahead_[unit] = false;
    --units_ahead_;
    elements_ahead_ -= elements_[unit];
  }

  const absl::Span<const UnitUse> uses_;
  const absl::Span<const int64_t> elements_;
  const GatherPlan& plan_;
  std::vector<std::vector<size_t>> uses_of_;  // by unit
  std::vector<bool> is_live_;                 // by unit
  std::vector<bool> is_ahead_;                // by unit: gathered, and not used yet
  int64_t units_ahead_ = 0;
  int64_t elements_ahead_ = 0;
  size_t now_ = 0;             // the use at hand
  size_t gathered_until_ = 0;  // what uses before this one need is there, from the one at hand on
  std::vector<int64_t> elements_before_;  // [uses + 1]: of all uses before
  int64_t live_ = 0;
  UseSchedule schedule_;
};

}  // namespace

UseSchedule ScheduleUses(absl::Span<const UnitUse> uses, absl::Span<const int64_t> unit_elements,
                         const GatherPlan& plan) {
  return Scheduler(uses, unit_elements, plan).Run();
}

}  // namespace muster::plan
