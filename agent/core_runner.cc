#include "agent/core_runner.h"

#include <utility>

namespace muster::agent {

CoreRunner::CoreRunner(asio::io_context& loop, AgentCoreOptions options, Shell& shell)
    : shell_(shell), core_(std::move(options)), timer_(loop) {}

void CoreRunner::Feed(Event event) {
  events_.push_back(std::move(event));
  if (is_stepping_) return;
  is_stepping_ = true;
  while (!events_.empty()) {
    const Event next = std::move(events_.front());
    events_.pop_front();
    for (const Effect& effect : core_.Step(next, MonoNow())) shell_.OnEffect(effect);
    shell_.OnStepped();
  }
  is_stepping_ = false;
  shell_.OnRest();
  ArmTimer();
}

void CoreRunner::ArmTimer() {
  const MonoTime deadline = core_.NextDeadline();
  timer_.cancel();
  if (deadline.is_infinite()) return;
  timer_.expires_after(absl::ToChronoNanoseconds(deadline - MonoNow()));
  timer_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    shell_.OnDeadline();
    Feed(Tick{});
  });
}

}  // namespace muster::agent
