// The order in which a process hands collectives of different communicators to a backend that works
// on streams of a device.
//
// A collective occupies the device until all its ranks run it. If two communicators share ranks and
// one rank starts A before B, another B before A, each may wait for room that the other holds, for
// ever. NCCL asks that all ranks start operations of different communicators in one order
// (NCCL's guide, "Using multiple NCCL communicators concurrently"); the order in which the program
// calls them is one, since a program calls collectives in the same order on all its ranks. Lanes
// are threads and would lose it: each call takes a place in line when it is called, and is started
// when those before it were.
//
// Sends and receives stand in no line: their order differs between ranks by right. A captured
// launch has one place for all the collectives in it.
#pragma once

#include <cstdint>
#include <set>

#include "proto/base/mutex.h"

namespace muster::comm {

// Threads: safe.
class LaunchOrder {
 public:
  using Place = int64_t;

  // The last place in line.
  Place Take() {
    base::MutexLock lock(mu_);
    line_.insert(line_.end(), next_);
    return next_++;
  }
  // Everything before `place` has left.
  bool IsFirst(Place place) {
    base::MutexLock lock(mu_);
    return line_.empty() || *line_.begin() >= place;
  }
  // It was started, or never will be.
  void Leave(Place place) {
    base::MutexLock lock(mu_);
    line_.erase(place);
  }

  // A place that is taken now and left at its end.
  class Turn {
   public:
    explicit Turn(LaunchOrder& order) : order_(order), place_(order.Take()) {}
    ~Turn() { order_.Leave(place_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    bool HasCome() const { return order_.IsFirst(place_); }

   private:
    LaunchOrder& order_;
    const Place place_;
  };

 private:
  base::Mutex mu_;
  std::set<Place> line_ ABSL_GUARDED_BY(mu_);
  Place next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster::comm
