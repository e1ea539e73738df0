// A thread that runs calls one after the other.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "proto/base/condition.h"
#include "proto/base/mutex.h"
#include "worker_runtime/comm/call_communicator.h"
#include "worker_runtime/comm/gloo/exchange.h"
#include "worker_runtime/comm/wait_point.h"

namespace muster::comm {

// Threads: safe.
class Lane {
 public:
  static constexpr size_t kMaxQueued = size_t{1} << 16;

  explicit Lane(std::function<void(Lane&, const Call&)> run);
  // Runs what is still queued; the owner has seen to it that this is quick.
  ~Lane();

  // False if the queue is full; the call is untouched then.
  bool Push(Call& call);

  // The point at which its thread waits.
  WaitPoint& wait_point() { return wait_point_; }
  // The scratch memory of its thread.
  ScratchMemory& scratch() { return scratch_; }

 private:
  void Run();

  const std::function<void(Lane&, const Call&)> run_;
  WaitPoint wait_point_;
  ScratchMemory scratch_;

  base::Mutex mu_;
  base::Condition changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Call> queue_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses everything above
};

}  // namespace muster::comm
