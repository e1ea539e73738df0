#include "rendezvous/core/effect_gate.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_set.h"

namespace muster::rendezvous {

EffectGate::Passed EffectGate::Push(std::vector<JobTable::JobEffect> effects) {
  Passed passed;
  for (JobTable::JobEffect& effect : effects) {
    if (!std::holds_alternative<KeepJob>(effect.effect)) continue;
    if (passed.to_write.empty()) passed.ticket = ++newest_;
    // What is left of it is passed over below.
    passed.to_write.push_back(
        std::exchange(effect, JobTable::JobEffect{.job = {}, .effect = KeepJob{}}));
  }
  for (JobTable::JobEffect& effect : effects) {
    if (std::holds_alternative<KeepJob>(effect.effect)) continue;
    if (newest_ == durable_ || !effect.waits_for_record) {
      passed.leaving.push_back(std::move(effect));
    } else {
      held_.push_back({newest_, std::move(effect)});
    }
  }
  if (held_.size() >= prune_at_) Prune();
  return passed;
}

std::vector<JobTable::JobEffect> EffectGate::OnDurable(uint64_t ticket) {
  durable_ = std::max(durable_, ticket);
  std::vector<JobTable::JobEffect> leaving;
  while (!held_.empty() && held_.front().ticket <= durable_) {
    leaving.push_back(std::move(held_.front().effect));
    held_.pop_front();
  }
  if (held_.empty()) prune_at_ = kPruneAt;
  return leaving;
}

bool EffectGate::Holds(const JobKey& job) const {
  return std::any_of(held_.begin(), held_.end(),
                     [&](const Held& held) { return held.effect.job == job; });
}

void EffectGate::Prune() {
  absl::btree_set<std::pair<JobKey, Incarnation>> told;
  std::deque<Held> kept;
  for (auto it = held_.rbegin(); it != held_.rend(); ++it) {
    const auto* send = std::get_if<SendDirective>(&it->effect.effect);
    if (send != nullptr && !told.insert({it->effect.job, send->to}).second) continue;
    kept.push_front(std::move(*it));
  }
  held_ = std::move(kept);
  prune_at_ = std::max(kPruneAt, 2 * held_.size());
}

}  // namespace muster::rendezvous
