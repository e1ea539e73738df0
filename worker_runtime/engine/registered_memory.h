// The memory that collectives work in, registered with their communicators
// (Communicator::Register).
//
// Either all ranks' buffers of a call must be registered or none's. So a group gets all that its
// collectives of a step work in, and whatever else it is called with on a device between steps lies
// there as well: units that are gathered for their use alone come to the first place of the same
// arena. What is not there is none of its ranks': activations and borrowed values travel by sends
// and receives, which no registration concerns, and checkpoints, questions and agreements through
// the host's memory.
//
// One exception, which is left out whole: the world of a pipeline. Between steps a stage sends the
// others a unit of its own, from its parameters (or the arena) to memory that they take for as
// long, and that may share a page with what is registered; in a step it adds nothing but norms and
// losses.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "muster/communicator.h"
#include "worker_runtime/engine/rig.h"

namespace muster::engine {

// Threads: thread-compatible; all ranks call it alike. Captures of calls in that memory end before.
class RegisteredMemory {
 public:
  // `rig` outlives this. `wanted`: whether there is any.
  RegisteredMemory(Rig& rig, bool wanted) : rig_(rig), wanted_(wanted) {}

  // The memory is about to be another one.
  void Clear() { registrations_.clear(); }
  // Registers the memory where that is wanted. Errors: the communicator's, on all ranks.
  absl::Status Register();

 private:
  absl::Status RegisterWithGroups();

  Rig& rig_;
  const bool wanted_;
  std::vector<Registration> registrations_;
};

}  // namespace muster::engine
