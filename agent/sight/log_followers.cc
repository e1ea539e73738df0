#include "agent/sight/log_followers.h"

#include <limits>
#include <utility>

namespace muster::agent {

uint64_t LogFollowers::OnLook(MonoTime now) {
  last_look_ = now;
  return ++num_looks_;
}

void LogFollowers::OnShown(uint64_t look, bool is_all) {
  std::erase_if(waiting_, [](const std::shared_ptr<Waiting>& one) { return one->then == nullptr; });
  if (!is_all) return;
  for (const std::shared_ptr<Waiting>& one : waiting_) {
    if (look <= one->looks_before) continue;
    one->looks_before = std::numeric_limits<uint64_t>::max();
    Arm(one, kAnswerTravelsFor);
  }
}

void LogFollowers::AwaitLook(absl::AnyInvocable<void()> then) {
  waiting_.push_back(
      std::make_shared<Waiting>(Waiting{num_looks_, asio::steady_timer(loop_), std::move(then)}));
  Arm(waiting_.back(), kLooksAgainWithin);
}

void LogFollowers::Arm(const std::shared_ptr<Waiting>& waiting, absl::Duration after) {
  waiting->timer.expires_after(absl::ToChronoNanoseconds(after));
  waiting->timer.async_wait([held = std::weak_ptr(waiting)](const asio::error_code& error) {
    const std::shared_ptr<Waiting> due = held.lock();
    if (error || due == nullptr) return;
    if (auto then = std::exchange(due->then, nullptr)) then();
  });
}

}  // namespace muster::agent
