// The first failure of a communicator, which is its end.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "proto/base/condition.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"

namespace muster::comm {

// Threads: safe.
class FailureCell {
 public:
  // True if `failure` is the first.
  bool Set(absl::Status failure) {
    base::MutexLock lock(mu_);
    if (!failure_.ok()) return false;
    failure_ = std::move(failure);
    changed_.NotifyAll();
    return true;
  }

  // Ok while there is none.
  absl::Status Get() {
    base::MutexLock lock(mu_);
    return failure_;
  }

  // Waits for a failure until `deadline`, and returns what Get does.
  absl::Status WaitFor(MonoTime deadline) {
    base::MutexLock lock(mu_);
    while (failure_.ok() && MonoNow() < deadline) changed_.WaitUntil(mu_, deadline);
    return failure_;
  }

 private:
  base::Mutex mu_;
  base::Condition changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
