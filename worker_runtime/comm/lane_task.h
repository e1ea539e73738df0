// A task that the thread of a lane runs between two calls: those before it have ended on the
// device, those behind it have not begun. What a backend may only do there, as touch the
// communicator of its lane.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/comm/call_communicator.h"
#include "worker_runtime/comm/completion.h"

namespace muster::comm {

// Threads: safe; copies are of the same task.
class LaneTask {
 public:
  LaneTask(std::string name, std::function<absl::Status()> body)
      : body_(std::move(body)),
        completion_(std::make_shared<Completion>([name = std::move(name)] { return name; })) {}

  // What stands for it in the lane's queue. Without a deadline, and what ends the call ends the
  // task: a lane that fails need not tell one from the other.
  Call AsCall() const {
    return {.deadline = MonoTime::InfiniteFuture(),
            .timeout = absl::InfiniteDuration(),
            .completion = completion_};
  }
  // The lane's thread.
  void Run() const { completion_->Finish(body_()); }
  // What the body has returned, or with what the lane has ended before it ran.
  absl::Status Wait() const { return completion_->Wait(MonoTime::InfiniteFuture()); }

 private:
  std::function<absl::Status()> body_;
  std::shared_ptr<Completion> completion_;
};

}  // namespace muster::comm
