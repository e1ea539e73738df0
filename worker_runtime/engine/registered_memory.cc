#include "worker_runtime/engine/registered_memory.h"

#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/tensor_buffer.h"

namespace muster::engine {

absl::Status RegisteredMemory::Register() {
  if (!wanted_) return absl::OkStatus();
  absl::Status status = RegisterWithGroups();
  if (status.ok()) return status;
  registrations_.clear();
  // The ranks of one group have agreed on it, while those of another wait for them.
  return rig_.own_groups.empty() ? status : rig_.Guard(std::move(status));
}

absl::Status RegisteredMemory::RegisterWithGroups() {
  const std::vector<Communicator*> groups = rig_.Groups();
  for (size_t g = rig_.is_pipeline() ? 1 : 0; g < groups.size(); ++g) {
    for (const Tensor& memory : rig_.reduction->MemoryOf(static_cast<int>(g))) {
      MUSTER_ASSIGN_OR_RETURN(
          Registration registration,
          groups[g]->Register(memory.empty() ? Buffer{} : BufferOfTensor(memory)));
      registrations_.push_back(std::move(registration));
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::engine
