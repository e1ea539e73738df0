#include "worker_runtime/comm/deadline_watch.h"

#include <utility>

namespace muster::comm {

DeadlineWatch::DeadlineWatch() : thread_([this] { Run(); }) {}

DeadlineWatch::~DeadlineWatch() {
  {
    base::MutexLock lock(mu_);
    closed_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

DeadlineWatch::Entry DeadlineWatch::Add(MonoTime deadline, absl::AnyInvocable<void()> on_expiry) {
  base::MutexLock lock(mu_);
  const Entry entry = next_entry_++;
  waiting_.emplace(entry, Waiting{deadline, std::move(on_expiry)});
  if (deadline < wakes_at_) changed_.NotifyAll();
  return entry;
}

// Waits out a callback that runs now: its owner is about to go. From within the callback it cannot.
void DeadlineWatch::Remove(Entry entry) {
  base::MutexLock lock(mu_);
  waiting_.erase(entry);
  while (running_ == entry && std::this_thread::get_id() != thread_.get_id()) {
    changed_.WaitUntil(mu_, MonoTime::InfiniteFuture());
  }
}

MonoTime DeadlineWatch::Earliest() const {
  MonoTime earliest = MonoTime::InfiniteFuture();
  for (const auto& [entry, waiting] : waiting_) earliest = Min(earliest, waiting.deadline);
  return earliest;
}

void DeadlineWatch::Run() {
  base::MutexLock lock(mu_);
  while (!closed_) {
    const MonoTime now = MonoNow();
    auto due = waiting_.begin();
    while (due != waiting_.end() && now < due->second.deadline) ++due;
    if (due == waiting_.end()) {
      wakes_at_ = Earliest();
      changed_.WaitUntil(mu_, wakes_at_);
      wakes_at_ = MonoTime();
      continue;
    }
    running_ = due->first;
    absl::AnyInvocable<void()> on_expiry = std::move(due->second.on_expiry);
    waiting_.erase(due);
    mu_.Unlock();
    on_expiry();
    mu_.Lock();
    running_ = 0;
    changed_.NotifyAll();
  }
}

}  // namespace muster::comm
