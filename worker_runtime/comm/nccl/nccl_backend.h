// NCCL as a backend, or the reason why this build has none: nccl_communicator.cc or
// nccl_unavailable.cc, picked by CMake.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "muster/communicator.h"

namespace muster::comm {

struct BackendRequest;

// Errors: kUnimplemented: this build has no NCCL.
absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(BackendRequest request);

}  // namespace muster::comm
