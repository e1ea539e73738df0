#include "worker_runtime/comm/gloo/lane.h"

#include <utility>

#include "worker_runtime/comm/gloo/sigpipe_block.h"

namespace muster::comm {

Lane::Lane(std::function<void(Lane&, const Call&)> run)
    : run_(std::move(run)), thread_([this] { Run(); }) {}

Lane::~Lane() {
  {
    base::MutexLock lock(mu_);
    closed_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

bool Lane::Push(Call& call) {
  base::MutexLock lock(mu_);
  if (queue_.size() >= kMaxQueued) return false;
  queue_.push_back(std::move(call));
  changed_.NotifyAll();
  return true;
}

void Lane::Run() {
  const SigpipeBlock block;
  while (true) {
    Call call;
    {
      base::MutexLock lock(mu_);
      while (queue_.empty() && !closed_) changed_.WaitUntil(mu_, MonoTime::InfiniteFuture());
      if (queue_.empty()) return;
      call = std::move(queue_.front());
      queue_.pop_front();
    }
    run_(*this, call);
  }
}

}  // namespace muster::comm
