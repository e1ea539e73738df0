#include "worker_runtime/comm/lane_queue.h"

#include <utility>

namespace muster::comm {

bool LaneQueue::Add(Item item) {
  items_.push_back(std::move(item));
  changed_.NotifyAll();
  return true;
}

bool LaneQueue::Push(Call& call) {
  base::MutexLock lock(mu_);
  if (items_.size() >= kMaxQueued) return false;
  std::optional<LaunchOrder::Place> place;
  if (order_ != nullptr) place = order_->Take();
  return Add({.call = std::move(call), .place = place});
}

bool LaneQueue::PushLaunch(Call& call) {
  base::MutexLock lock(mu_);
  if (items_.size() >= kMaxQueued) return false;
  return Add({.call = std::move(call), .is_launch = true});
}

bool LaneQueue::PushTask(const LaneTask& task) {
  base::MutexLock lock(mu_);
  if (items_.size() >= kMaxQueued) return false;
  return Add({.call = task.AsCall(), .task = task});
}

void LaneQueue::Wake() {
  base::MutexLock lock(mu_);
  woken_ = true;
  changed_.NotifyAll();
}

void LaneQueue::Close(End how) {
  base::MutexLock lock(mu_);
  if (end_ == End::kNone) end_ = how;
  changed_.NotifyAll();
}

LaneQueue::End LaneQueue::end() {
  base::MutexLock lock(mu_);
  return end_;
}

bool LaneQueue::IsTurn(bool is_idle) {
  if (items_.empty()) return false;
  const Item& first = items_.front();
  if (first.task.has_value()) return is_idle;
  return !first.place.has_value() || order_->IsFirst(*first.place);
}

bool LaneQueue::HasNews() const { return end_ != End::kNone || woken_; }

bool LaneQueue::WaitForWork(UnderWay under_way, absl::Duration poll) {
  base::MutexLock lock(mu_);
  const bool can_start = under_way.has_room && IsTurn(under_way.is_idle);
  if ((!under_way.is_idle || !items_.empty()) && !can_start && !HasNews()) {
    changed_.WaitUntil(mu_, MonoNow() + poll);
  }
  while (under_way.is_idle && items_.empty() && !HasNews()) {
    changed_.WaitUntil(mu_, MonoTime::InfiniteFuture());
  }
  woken_ = false;
  return end_ == End::kNone;
}

std::optional<LaneQueue::Item> LaneQueue::Take() {
  if (items_.empty()) return std::nullopt;
  Item first = std::move(items_.front());
  items_.pop_front();
  return first;
}

std::optional<LaneQueue::Item> LaneQueue::TakeNext(bool is_idle) {
  base::MutexLock lock(mu_);
  return IsTurn(is_idle) ? Take() : std::nullopt;
}

std::optional<LaneQueue::Item> LaneQueue::TakeFirst() {
  base::MutexLock lock(mu_);
  return Take();
}

std::optional<Call> LaneQueue::FindLate(MonoTime now) {
  base::MutexLock lock(mu_);
  for (const Item& item : items_) {
    if (item.call.deadline <= now) return item.call;
  }
  return std::nullopt;
}

void LaneQueue::Leave(const std::optional<LaunchOrder::Place>& place) {
  if (place.has_value()) order_->Leave(*place);
}

}  // namespace muster::comm
