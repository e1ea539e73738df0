#include "agent/torch_store/waits.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kSlicePause = absl::Seconds(5);

}  // namespace

bool Waits::Wait::GoesOn(MonoTime now) const {
  return is_held || (!awaited.empty() && now - cancelled_at <= kSlicePause);
}

void Waits::Note(StoreConnection connection, const StoreWait* held, bool cancelled,
                 const Barriers& barriers, MonoTime now) {
  const auto found = waits_.find(connection);
  if (found == waits_.end()) return;
  Wait& wait = found->second;
  if (held == nullptr) {
    if (!wait.is_held) return;
    held_.erase({wait.since, connection});
    at_barrier_.erase({wait.since, connection});
    wait.is_held = false;
    wait.cancelled_at = now;
    if (!cancelled) wait.awaited.clear();
    return;
  }
  if (wait.is_held) return;  // one of several keys has come
  const std::string& key = held->barrier.empty() ? *held->absent.begin() : held->barrier;
  const bool goes_on = wait.awaited == key && wait.GoesOn(now);
  if (!goes_on) wait.since = now;
  wait.awaited = key;
  wait.is_held = true;
  held_.insert({wait.since, connection});
  if (barriers.Find(key) != nullptr) at_barrier_.insert({wait.since, connection});
}

void Waits::LeaveBarrier(StoreConnection connection) {
  at_barrier_.erase({waits_.at(connection).since, connection});
}

void Waits::Close(StoreConnection connection) {
  const auto found = waits_.find(connection);
  if (found == waits_.end()) return;
  held_.erase({found->second.since, connection});
  at_barrier_.erase({found->second.since, connection});
  waits_.erase(found);
}

}  // namespace muster::agent
