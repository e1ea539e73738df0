// The one task of a link that may run later.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/io/loop_mailbox.h"

namespace muster::rendezvous {

class LinkTimer {
 public:
  LinkTimer(asio::io_context& loop, LoopMailbox mailbox)
      : timer_(loop), mailbox_(std::move(mailbox)) {}

  // Replaces the task that was armed before.
  void Arm(absl::Duration delay, std::function<void()> task) {
    timer_.expires_after(absl::ToChronoNanoseconds(delay));
    timer_.async_wait(
        [mailbox = mailbox_, id = ++id_, this, task = std::move(task)](const auto& error) {
          if (error) return;
          mailbox.Post([this, id, task] {
            if (id == id_) task();
          });
        });
  }
  // The task runs no more.
  void Disarm() {
    ++id_;
    timer_.cancel();
  }

 private:
  asio::steady_timer timer_;
  const LoopMailbox mailbox_;
  uint64_t id_ = 0;  // of the task that may run; older ones are dropped
};

}  // namespace muster::rendezvous
