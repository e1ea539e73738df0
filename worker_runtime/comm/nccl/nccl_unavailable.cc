// The nccl back end of a program without NCCL: it says so when it is asked for.
#include "worker_runtime/comm/nccl/nccl_backend.h"

namespace muster::comm {
namespace {

absl::Status LinkedWithout() {
  return absl::UnimplementedError(
      "backend nccl: this program is linked without NCCL; use gloo, or build it (and muster) where "
      "nccl.h and the CUDA toolkit are installed");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(BackendRequest) {
  return LinkedWithout();
}

absl::StatusOr<std::string> NameNccl() { return LinkedWithout(); }

}  // namespace muster::comm
