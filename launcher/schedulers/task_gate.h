// Several tasks of one node, one agent: the first task listens at a name that the others know, and
// they lie idle until it is gone. Schedulers that were asked for one task per GPU start as many of
// us.
//
// The name is an abstract Unix socket: no file, gone with its process however that ends. Who
// listens there is checked to be the same user.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/base/mono_time.h"
#include "proto/io/unique_fd.h"

namespace muster::launcher {

// Held by the agent's task.
class TaskGate {
 public:
  // `job` is the same for the tasks of this node, and for no other job.
  //
  // Errors: kAlreadyExists: another agent of the job is on this node. kInternal.
  static absl::StatusOr<TaskGate> Open(const std::string& job);
  // Closes no sooner than two seconds after Open, so that tasks which start a little later find it.
  ~TaskGate();
  TaskGate(TaskGate&&) noexcept = default;
  TaskGate& operator=(TaskGate&&) = delete;

 private:
  explicit TaskGate(UniqueFd socket) : socket_(std::move(socket)), opened_(MonoNow()) {}

  UniqueFd socket_;
  MonoTime opened_;
};

// Waits for the agent's task and then for its end; returns this task's exit code. Signals that
// would end it are left to the agent, once that has been found.
int LieIdle(const std::string& job);

}  // namespace muster::launcher
