// Ends all communicators of a runtime at once: those whose ranks may be in no condition to tell each other.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "muster/communicator.h"
#include "proto/base/mutex.h"

namespace muster::comm {

// Threads: safe.
class AbortSwitch {
 public:
  // A communicator that is complete; of one that comes too late this is the end.
  void Enter(Communicator& communicator) {
    base::MutexLock lock(mu_);
    members_.insert(&communicator);
    if (reason_.has_value()) communicator.Abort(*reason_);
  }
  // The first act of its destructor: waits for a Throw that is under way.
  void Leave(Communicator& communicator) {
    base::MutexLock lock(mu_);
    members_.erase(&communicator);
  }
  // For good.
  void Throw(const std::string& reason) {
    base::MutexLock lock(mu_);
    reason_ = reason;
    for (Communicator* const member : members_) member->Abort(reason);
  }

 private:
  base::Mutex mu_;
  std::set<Communicator*> members_ ABSL_GUARDED_BY(mu_);
  std::optional<std::string> reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
