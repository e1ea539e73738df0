// Those who follow the log files (`muster logs --follow`) look at them again and again. The end of
// a worker waits for one more look of theirs, since nobody answers them once the job has ended.
//
// One event loop, loop thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/mono_time.h"

namespace muster::agent {

// A reader that has looked within this time follows: a look comes every half second.
inline constexpr absl::Duration kFollowsFor = absl::Seconds(2);
// How long an end waits for a look at most.
inline constexpr absl::Duration kLooksAgainWithin = absl::Seconds(3);
// An answer goes through the server, which waits for those of other nodes.
inline constexpr absl::Duration kAnswerTravelsFor = absl::Milliseconds(250);

class LogFollowers {
 public:
  explicit LogFollowers(asio::io_context& loop) : loop_(loop) {}
  LogFollowers(const LogFollowers&) = delete;
  LogFollowers& operator=(const LogFollowers&) = delete;

  // A look begins; its number is for OnShown.
  uint64_t OnLook(MonoTime now);
  // The answer to `look` has been sent; `is_all`: no log file had more than it shows.
  void OnShown(uint64_t look, bool is_all);
  bool AreThere(MonoTime now) const { return last_look_ && now - *last_look_ <= kFollowsFor; }
  // Calls `then` once: kAnswerTravelsFor after a look that begins later than this and shows all, or
  // when kLooksAgainWithin is over; never if this object goes first.
  void AwaitLook(absl::AnyInvocable<void()> then);

 private:
  struct Waiting {
    uint64_t looks_before = 0;
    asio::steady_timer timer;
    absl::AnyInvocable<void()> then;  // null: it has been called
  };

  static void Arm(const std::shared_ptr<Waiting>& waiting, absl::Duration after);

  asio::io_context& loop_;
  std::optional<MonoTime> last_look_;
  uint64_t num_looks_ = 0;
  std::vector<std::shared_ptr<Waiting>> waiting_;
};

}  // namespace muster::agent
