// Steps per second of the rank that is furthest, over the last ten seconds or so.
//
// Threads: compatible; pure.
#pragma once

#include <cstdint>
#include <deque>

#include "absl/time/time.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

class StepRate {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(10);

  // The step at `now`; -1: none is known. To be called about once a second.
  void Listen(int64_t step, MonoTime now) {
    if (!looks_.empty() && step < looks_.back().step) looks_.clear();
    if (step < 0) return;
    looks_.push_back({step, now});
    // One look that is older than the window stays: slow steps are longer than it.
    while (looks_.size() > 2 && now - looks_[1].at >= kWindow) looks_.pop_front();
  }

  // -1: not known yet.
  double per_second() const {
    if (looks_.size() < 2) return -1;
    const double seconds = absl::ToDoubleSeconds(looks_.back().at - looks_.front().at);
    if (seconds <= 0) return -1;
    return static_cast<double>(looks_.back().step - looks_.front().step) / seconds;
  }

 private:
  struct Look {
    int64_t step = 0;
    MonoTime at;
  };
  std::deque<Look> looks_;
};

}  // namespace muster::agent
