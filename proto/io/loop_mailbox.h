// Tasks from foreign threads (gRPC's) to an owner on an event loop, safe across the owner's end.
#pragma once

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "asio/io_context.hpp"
#include "asio/post.hpp"
#include "proto/base/mutex.h"

namespace muster {

// A copyable handle; the owner and every sender hold one, since a sender may outlive the owner.
//
// Its bound is the senders' rule: each posts one message and waits for the owner to ask for the
// next.
class LoopMailbox {
 public:
  // `loop` must live until Close.
  explicit LoopMailbox(asio::io_context& loop) : state_(std::make_shared<State>()) {
    state_->loop = &loop;
  }

  // Runs `task` on the loop, in the order of posting; drops it after Close. Thread-safe.
  void Post(absl::AnyInvocable<void()> task) const {
    base::MutexLock lock(state_->mu);
    if (state_->loop == nullptr) return;
    asio::post(*state_->loop, [state = state_, task = std::move(task)]() mutable {
      if (state->IsOpen()) task();
    });
  }

  // Loop thread only. Tasks that were posted and have not run yet are dropped.
  void Close() const {
    base::MutexLock lock(state_->mu);
    state_->loop = nullptr;
  }

 private:
  struct State {
    bool IsOpen() {
      base::MutexLock lock(mu);
      return loop != nullptr;
    }
    base::Mutex mu;
    asio::io_context* loop ABSL_GUARDED_BY(mu) = nullptr;
  };
  std::shared_ptr<State> state_;
};

}  // namespace muster
