// Ends all communicators of a runtime at once, and those that are being made: their ranks may be in
// no condition to tell each other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/base/mutex.h"

namespace muster::comm {

// Threads: safe.
class AbortSwitch {
 public:
  using Act = std::function<void(absl::string_view reason)>;

  // `act` is called when it is thrown, at once if it has been. Until Leave of what this returns.
  uint64_t Enter(Act act) {
    base::MutexLock lock(mu_);
    if (!thrown_.ok()) act(thrown_.message());
    acts_[++last_] = std::move(act);
    return last_;
  }
  // Waits for a Throw that is under way.
  void Leave(uint64_t place) {
    base::MutexLock lock(mu_);
    acts_.erase(place);
  }
  // Throws the switch for good.
  void Throw(absl::string_view reason) {
    base::MutexLock lock(mu_);
    thrown_ = absl::AbortedError(reason);
    for (const auto& [unused, act] : acts_) act(reason);
  }
  // kAborted with the reason, once it has been thrown.
  absl::Status thrown() {
    base::MutexLock lock(mu_);
    return thrown_;
  }

 private:
  base::Mutex mu_;
  std::map<uint64_t, Act> acts_ ABSL_GUARDED_BY(mu_);
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status thrown_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
