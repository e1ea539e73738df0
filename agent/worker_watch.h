// Watches workers in the ways that torchrun's variables ask for: timers that the workers set
// themselves (TORCHELASTIC_ENABLE_FILE_TIMER), and workers that the kernel does not let go
// (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT). Does nothing unless it is asked.
//
// One event loop, loop thread only. What expires is decided by core/file_timers.h.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/core/file_timers.h"
#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/mono_time.h"

namespace muster::agent {

struct WatchOptions {
  std::string timer_pipe;  // to be made; empty: no timers
  // How long a worker may stay in the kernel's uninterruptible sleep (state D). Zero: not watched.
  absl::Duration uninterruptible_timeout;
  int health_port = 0;  // 0: none
};

struct WatchListener {
  std::function<std::vector<int>()> worker_pids;
  // A worker let its timer run out; `why` is for the report. It is being ended by its signal.
  std::function<void(int pid, std::string why)> on_expired;
  // A worker has been uninterruptible for the whole time. SIGKILL reaches it when the kernel lets
  // go.
  std::function<void(int pid, std::string why)> on_stuck;
};

class WorkerWatch {
 public:
  WorkerWatch(asio::io_context& loop, WatchOptions options, WatchListener listener);

  // Makes the pipe. One that a job before has left is replaced; anything else is not.
  //
  // Errors: kInvalidArgument naming TORCHELASTIC_TIMER_FILE, the path and errno in words.
  absl::Status Start();
  // Timers of the workers before mean nothing to the next.
  void StartRound();
  void Stop();

 private:
  void ReadPipe();
  void TakeLines();
  void ArmTimer();
  void EndExpired();
  void LookAtStates();

  // Constant after construction.
  const WatchOptions options_;
  const WatchListener listener_;

  // Loop thread only.
  asio::posix::stream_descriptor pipe_;
  std::string unread_;
  FileTimers timers_;
  asio::steady_timer expiry_;
  asio::steady_timer look_;
  std::map<int, MonoTime> uninterruptible_since_;  // by pid
  bool has_complained_ = false;
};

}  // namespace muster::agent
