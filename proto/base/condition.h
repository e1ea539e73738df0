// A condition variable over Mutex with deadlines on the monotonic clock.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"

namespace muster::base {

class Condition {
 public:
  // Waits until notified, spuriously woken, or `deadline`; the caller checks its predicate again.
  void WaitUntil(Mutex& mu, MonoTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu.native(), std::adopt_lock);
    const absl::Duration left = deadline - MonoNow();
    // A far deadline would overflow the clock's type.
    if (left > absl::Hours(24)) {
      changed_.wait_for(lock, std::chrono::hours(24));
    } else {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(left));
    }
    lock.release();
  }
  void NotifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace muster::base
