// Tells a person of work that takes long, while the caller is at it.
//
// Threads: compatible; one internal thread, which says it.
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/base/condition.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"

namespace muster::launcher {

class LongWork {
 public:
  // Calls `say` once, unless this has been destroyed within `quiet`.
  LongWork(absl::Duration quiet, std::function<void()> say)
      : quiet_ends_(MonoNow() + quiet),
        say_(std::move(say)),
        thread_([this] { SayUnlessOver(); }) {}
  ~LongWork() {
    {
      base::MutexLock lock(mu_);
      is_over_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

 private:
  void SayUnlessOver() {
    base::MutexLock lock(mu_);
    while (!is_over_ && MonoNow() < quiet_ends_) changed_.WaitUntil(mu_, quiet_ends_);
    if (!is_over_) say_();
  }

  const MonoTime quiet_ends_;
  const std::function<void()> say_;
  base::Mutex mu_;
  base::Condition changed_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster::launcher
