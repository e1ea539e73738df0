// Virtual time: what happens when. Things of the same instant happen in an order drawn from the
// seed.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "proto/base/mono_time.h"
#include "tests/simulation/sim_random.h"

namespace muster::simulation {

class SimSchedule {
 public:
  explicit SimSchedule(SimRandom& random) : random_(random) {}

  MonoTime now() const { return now_; }
  void At(MonoTime when, std::function<void()> act) {
    queue_.push({when < now_ ? now_ : when, random_.Bits(), next_++, std::move(act)});
  }
  void After(absl::Duration delay, std::function<void()> act) { At(now_ + delay, std::move(act)); }

  // Runs the earliest thing. False if nothing is left before `end`.
  bool RunNext(MonoTime end) {
    if (queue_.empty() || queue_.top().when > end) return false;
    Entry entry = queue_.top();
    queue_.pop();
    steps_at_now_ = entry.when == now_ ? steps_at_now_ + 1 : 0;
    now_ = entry.when;
    entry.act();
    return true;
  }
  // How many things have happened in a row without time going on: a timer that spins shows here.
  int steps_at_now() const { return steps_at_now_; }

 private:
  struct Entry {
    MonoTime when;
    uint64_t tie = 0;
    uint64_t number = 0;
    std::function<void()> act;
    bool operator<(const Entry& other) const {
      if (when != other.when) return when > other.when;
      return tie != other.tie ? tie > other.tie : number > other.number;
    }
  };

  SimRandom& random_;  // of the SimCluster that owns both
  MonoTime now_;
  uint64_t next_ = 0;
  int steps_at_now_ = 0;
  std::priority_queue<Entry> queue_;
};

}  // namespace muster::simulation
