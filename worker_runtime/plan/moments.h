// Which moments of a program wait for which, for proofs.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <vector>

#include "worker_runtime/plan/program.h"

namespace muster::plan {

// A moment is an action, or of a pass what comes before its first use (the first) and each use.
class Moments {
 public:
  // `program` outlives this; its references hold (CheckReferences).
  explicit Moments(const Program& program);

  bool Computes(size_t moment) const { return turn_[moment] != kNone; }
  size_t First(int action) const { return first_[action]; }
  size_t Last(int action) const {
    return first_[action] + EntriesOf(program_.actions[action]).size();
  }
  // The moment of use number `entry`.
  size_t Use(int pass, size_t entry) const { return first_[pass] + 1 + entry; }
  // The action whose moment it is.
  size_t ActionOf(size_t moment) const;

  // Called once, before the two below. False if something waits for itself.
  bool Order();
  // A number, which is above those of all that it waits for.
  size_t PlaceOf(size_t moment) const { return place_[moment]; }
  // Whether `later` waits for `earlier`, however many moments lie between them. Computing is a
  // chain, which answers most. What is left are waits among other actions alone, and few of these
  // follow each other.
  bool IsBefore(size_t earlier, size_t later) const;

 private:
  void Connect();
  void FindComputing(const std::vector<size_t>& ordered,
                     const std::vector<std::vector<size_t>>& followers);
  // Whether one that computes nothing waits for another, by way of such alone.
  bool IsAwaited(size_t earlier, size_t later) const;

  const Program& program_;
  std::vector<size_t> first_;  // by action
  size_t count_ = 0;
  // The rest is by moment.
  std::vector<std::vector<size_t>> before_;  // those that it waits for itself
  std::vector<int> turn_;                    // in the chain of what computes; kNone: it does not
  std::vector<int> last_before_;             // the last turn that it waits for
  std::vector<int> first_after_;             // the first turn that waits for it
  std::vector<size_t> place_;
};

}  // namespace muster::plan
