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
#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/tensor_buffer.h"

namespace muster {

absl::Status Engine::State::RegisterBuffers() {
  if (!registers) return absl::OkStatus();
  const absl::Status status = RegisterWithGroups();
  if (status.ok()) return status;
  // The ranks of one group may know of it and go, while those of another wait for them.
  registrations.clear();
  if (!own_groups.empty()) Abort(status.message());
  return status;
}

absl::Status Engine::State::RegisterWithGroups() {
  for (size_t g = is_pipeline() ? 1 : 0; g < program.groups.size(); ++g) {
    Communicator& group = g == 0 ? world : *own_groups[g - 1];
    for (const Tensor& memory : reduction->MemoryOf(static_cast<int>(g))) {
      MUSTER_ASSIGN_OR_RETURN(
          Registration registration,
          group.Register(memory.empty() ? Buffer{} : engine::BufferOfTensor(memory)));
      registrations.push_back(std::move(registration));
    }
  }
  return absl::OkStatus();
}

}  // namespace muster
