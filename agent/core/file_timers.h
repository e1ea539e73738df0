// PyTorch's file timers: a worker that means to be somewhere in time writes a request to a pipe,
// and takes it back when it is there. One whose time is over has hung and is ended by the signal
// that it chose itself.
//
// Pure. Performed by agent/worker_watch.h.
// Source: torch 2.15, torch/distributed/elastic/timer/file_based_local_timer.py. Differs in that
// the server does not end itself with the worker: a failure is handled like any other.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster::agent {

class FileTimers {
 public:
  // A line is one request; a longer one could not have been written whole (PIPE_BUF).
  static constexpr size_t kLineBytesMax = 4096;
  static constexpr size_t kTimersMax = 65536;

  struct Expired {
    int pid = 0;
    std::string scope;  // as the program named it
    int signal = 0;     // 0: the worker is only named
    friend bool operator==(const Expired&, const Expired&) = default;
  };

  // One request: {"pid", "scope_id", "expiration_time", "signal"}, the time in seconds since 1970;
  // a negative one takes the timer back.
  //
  // Errors: kInvalidArgument: not a request. kResourceExhausted: too many timers.
  absl::Status Take(absl::string_view line);

  // One for each process with a timer that has expired, the earliest that has a signal; all timers
  // of that process are forgotten.
  std::vector<Expired> Expire(absl::Time now);

  // InfiniteFuture() if there is none.
  absl::Time NextExpiry() const;
  void Clear() { timers_.clear(); }

 private:
  struct Timer {
    absl::Time expires;
    int signal = 0;
  };
  std::map<std::pair<int, std::string>, Timer> timers_;  // by pid and scope
};

}  // namespace muster::agent
