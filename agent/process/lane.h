// A thread for one kind of thing that may be stuck: the workers' sockets, the files of their
// programs, a driver, a disk, a sweep. It is started with the lane, because later none may be to be
// had: a worker may fill the limit on processes that its user shares.
//
// A thread that is stuck is left behind, and another is tried. Where none is to be had, the caller
// is told so, and goes on without.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace muster::agent {

// Starts a thread that nobody joins; false if none is to be had.
using StartThread = std::function<bool(const std::string& name, absl::AnyInvocable<void()> body)>;
bool StartDetachedThread(const std::string& name, absl::AnyInvocable<void()> body);

// A copyable handle: copies are one lane. It ends with the last of them, without waiting for its
// threads.
//
// Threads: safe.
class Lane {
 public:
  // What may wait for a thread, and how many threads there may be, those that are stuck included.
  static constexpr size_t kQueuedMax = 64;
  static constexpr int kThreadsMax = 8;

  // `name` is the threads', at most 15 bytes of it.
  explicit Lane(std::string name, StartThread start = StartDetachedThread);

  // Runs `task` on a thread of the lane that is free, or on another; behind what is under way where
  // no other can be started. One that has been at its task for longer than that task's `patience`
  // is stuck. A task that runs out of memory ends there.
  //
  // False: it will not run, because all threads are stuck, or because there is none.
  [[nodiscard]] bool Do(absl::Duration patience, absl::AnyInvocable<void()> task) const;

 private:
  class Owner;
  struct State;
  // Its end tells the threads, which share the state, to end.
  std::shared_ptr<Owner> owner_;
};

}  // namespace muster::agent
