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

// What every operation of a Communicator returns. Copies stand for the same operation; dropping all
// of them does not cancel it. The operation's buffers belong to it until Wait returns something
// else than "not finished yet", or IsDone returns true; those of a device (CallOptions::queue)
// until Wait has returned, or for what is put on a queue that went through Await.
//
// Threads: safe.
class Work {
 public:
  // Work that was done at once, without error.
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

  // What is put on `queue`, of the device that holds the operation's buffers, from now on runs
  // after the operation has finished well. Waits on the host where the operation runs on the host;
  // else it returns at once, and a failure that comes later is told by Wait alone.
  //
  // Errors: Wait's, as far as they are known.
  absl::Status Await(Queue& queue) const;

  // True once Wait would return without waiting.
  bool IsDone() const;

  // When its backend took it up (its turn had come; with loopback: the last rank had come) and when
  // it had finished, well or not; InfiniteFuture until then. Work that was done at once has
  // MonoTime(), which is before every other instant. An operation that failed before its turn has
  // finished and never started.
  MonoTime StartedAt() const;
  MonoTime FinishedAt() const;

 private:
  std::shared_ptr<comm::Completion> completion_;
};

}  // namespace muster
