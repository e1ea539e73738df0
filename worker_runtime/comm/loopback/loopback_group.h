// The meeting place of the ranks of a loopback group. The last one to arrive at an operation runs
// it for all.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/mutex.h"
#include "worker_runtime/comm/call_communicator.h"
#include "worker_runtime/comm/deadline_watch.h"

namespace muster::comm {

// Shared by the communicators of its ranks, which end in any order.
//
// Threads: safe.
class LoopbackGroup {
 public:
  LoopbackGroup(std::string name, int size, std::shared_ptr<DeadlineWatch> watch);

  void Arrive(int rank, Call call);
  void Fail(absl::Status failure);
  // What needs `rank` from now on fails.
  void Leave(int rank);
  // The group of that path, made by the first of its ranks to ask.
  std::shared_ptr<LoopbackGroup> Child(const std::string& path, std::string name, int size);

 private:
  struct Arrival {
    Call call;
    DeadlineWatch::Entry expiry = 0;
  };
  // Collectives meet by sequence; transfers by (sender, receiver, sequence).
  using Key = std::tuple<int, int, int64_t>;
  struct Meeting {
    std::map<int, Arrival> arrivals;  // by rank
    bool running = false;             // past failing: its buffers are in use
  };

  struct Ended {
    absl::Status status;
    std::vector<Arrival> arrivals;
  };

  static Key KeyOf(int rank, const Operation& operation);
  size_t Needed(const Operation& operation) const;
  // The ranks that `operation` of `rank` still waits for.
  std::vector<int> Missing(int rank, const Operation& operation, const Meeting& meeting) const;
  // Ok if what has arrived at a meeting fits together.
  absl::Status Check(const Meeting& meeting) const;
  void Expire(Key key, int rank);
  Ended Run(Key key);
  // Takes every meeting that is not running; the caller settles them once mu_ is released.
  Ended FailLocked(absl::Status failure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Finishes calls. Waiters may end the group from then on, so it is the last thing that a method
  // does.
  void Settle(Ended ended);
  std::optional<int> Departed(const std::vector<int>& ranks) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const std::string name_;
  const int size_;
  const std::shared_ptr<DeadlineWatch> watch_;

  base::Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> left_ ABSL_GUARDED_BY(mu_);
  std::map<Key, Meeting> meetings_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<LoopbackGroup>> children_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
