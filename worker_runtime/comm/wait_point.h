// The point at which one thread waits for a message, so that another can end its waits.
#pragma once

#include <functional>
#include <utility>

#include "proto/base/mutex.h"

namespace muster::comm {

// Threads: safe; one thread waits at a time.
class WaitPoint {
 public:
  // Ends the wait that is under way and every later one, until Reset.
  void Interrupt() {
    base::MutexLock lock(mu_);
    is_interrupted_ = true;
    if (wake_ != nullptr) wake_();
  }
  void Reset() {
    base::MutexLock lock(mu_);
    is_interrupted_ = false;
  }
  bool is_interrupted() {
    base::MutexLock lock(mu_);
    return is_interrupted_;
  }
  // Ends the wait that is under way, for its thread to look around.
  void Nudge() {
    base::MutexLock lock(mu_);
    if (wake_ != nullptr) wake_();
  }

  // Begins a wait: `wake` makes the waiting thread look around, and may be called until End. False,
  // and there is nothing to end, if the point is interrupted.
  bool Begin(std::function<void()> wake) {
    base::MutexLock lock(mu_);
    if (is_interrupted_) return false;
    wake_ = std::move(wake);
    return true;
  }
  void End() {
    base::MutexLock lock(mu_);
    wake_ = nullptr;
  }

 private:
  base::Mutex mu_;
  bool is_interrupted_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> wake_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
