// Gloo writes to connections that a peer may have closed; the signal for that is to end nobody.
#pragma once

#include <csignal>
#include <ctime>
#include <utility>

namespace muster::comm {

// While one lives, SIGPIPE is blocked on its thread; what was raised meanwhile is forgotten at the
// end. Within another it does nothing and costs nothing, so that threads which do little else than
// write hold one for life and spare four system calls around each write. Threads that are started
// meanwhile inherit the mask. Threads: one thread.
class SigpipeBlock {
 public:
  SigpipeBlock() : is_outermost_(!std::exchange(is_blocked_, true)) {
    if (!is_outermost_) return;
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeBlock() {
    if (!is_outermost_) return;
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&sigpipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    is_blocked_ = false;
  }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  static inline thread_local bool is_blocked_ = false;

  const bool is_outermost_;
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace muster::comm
