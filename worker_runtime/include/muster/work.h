// The handle of one operation in flight.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "proto/base/mono_time.h"

namespace muster {

class Queue;

namespace comm {
class Completion;
}  // namespace comm

// The result of every operation of a Communicator. Copies stand for the same operation; dropping
// all of them does not cancel it. The operation owns its buffers until Wait returns anything other
// than "not finished yet", or IsDone returns true. It owns buffers of a device (CallOptions::queue)
// until Wait has returned; work put on a queue after Await may use them.
//
// Threads: safe.
class Work {
 public:
  // Work that finished at once, without error.
  Work() = default;
  // Made by backends.
  explicit Work(std::shared_ptr<comm::Completion> completion)
      : completion_(std::move(completion)) {}

  // Waits until the operation has finished, at most until `deadline`. The operation's own deadline
  // ends the wait in any case, so that the default cannot hang.
  //
  // Errors: each names the rank, the operation, its sequence number and its group.
  //   kDeadlineExceeded:  the operation's own deadline passed (the message names who is missing;
  //                       the communicator has failed), or `deadline` did (the operation is still
  //                       in flight).
  //   kAborted:           somebody called Abort, or closed the communicator.
  //   kInvalidArgument:   the call itself was wrong, or the ranks called different operations.
  //   kUnavailable:       a rank has died or cannot be reached.
  //   kResourceExhausted: too many operations are waiting to be run.
  absl::Status Wait(MonoTime deadline = MonoTime::InfiniteFuture()) const;

  // Makes work that `queue` is given from now on run after the operation has succeeded. `queue` is
  // of the device that holds the operation's buffers. If the operation runs on the host, the call
  // waits; otherwise it returns at once, and only Wait reports a later failure.
  //
  // Errors: Wait's, as far as they are known.
  absl::Status Await(Queue& queue) const;

  // True once Wait would return without waiting.
  bool IsDone() const;

  // When the backend started the operation (with loopback: when the last rank had come), and when
  // it finished or failed; InfiniteFuture until then. Work that finished at once has MonoTime(),
  // which is before every other instant. An operation that failed before its turn has finished and
  // never started.
  MonoTime StartedAt() const;
  MonoTime FinishedAt() const;

 private:
  std::shared_ptr<comm::Completion> completion_;
};

}  // namespace muster
