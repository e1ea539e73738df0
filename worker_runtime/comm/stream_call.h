// A call that a backend runs on a stream of the device that holds its buffers: it begins behind an
// event of the caller's queue, and queues go on behind an event of its end. The host waits for
// neither.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "muster/device.h"
#include "worker_runtime/comm/completion.h"

namespace muster::comm {

// The backend lets its stream wait for `filled`, puts the operation there, records `finished`
// behind it and calls MarkPosted; Finish once the device has come so far, or with what failed.
//
// Threads: safe; `finished` is the backend's until MarkPosted.
class StreamCompletion final : public Completion {
 public:
  // The device of `queue` outlives its waiters.
  StreamCompletion(std::function<std::string()> description, Queue& queue, int num_parts = 1)
      : Completion(std::move(description), num_parts),
        filled_(queue.device().MakeEvent()),
        finished_(queue.device().MakeEvent()) {
    filled_->Record(queue);
  }

  // What was on the caller's queue before the call.
  const Event& filled() const { return *filled_; }
  Event& finished() { return *finished_; }

  absl::Status Await(Queue& queue) override {
    absl::Status status = WaitUntilPosted();
    if (status.ok()) finished_->HoldUp(queue);
    return status;
  }

 private:
  const std::unique_ptr<Event> filled_;
  const std::unique_ptr<Event> finished_;
};

}  // namespace muster::comm
