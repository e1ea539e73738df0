#include "worker_runtime/comm/communicator_registry.h"
#include "worker_runtime/comm/nccl/nccl_backend.h"

namespace muster::comm {

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(BackendRequest) {
  return absl::UnimplementedError(
      "backend nccl: this build of muster has no NCCL; use gloo, or a build made where nccl.h and "
      "the CUDA toolkit are "
      "installed");
}

}  // namespace muster::comm
