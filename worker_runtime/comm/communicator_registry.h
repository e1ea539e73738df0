// Communicators by the name of their backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/comm/backend.h"

namespace muster::comm {

// "loopback", "gloo", "nccl".
std::vector<std::string> BackendNames();

// Waits for the other ranks. A single rank needs neither network nor store. Without a name it is
// what all ranks can use (agreed_backend.h): nccl needs request.gpu.
//
// Errors: kInvalidArgument: no such backend; loopback for several processes; an interface that
//         does not exist; kUnimplemented: a backend that this build lacks, and how to get it;
//         others: AgreeOnBackend's, the backend's.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(const std::string& backend,
                                                               BackendRequest request);

// Remakes by the name that request.former was made by, or again without one; ranks without a former
// one call MakeCommunicator with the same request.
//
// Errors: kInvalidArgument: there is no former one, or it was not made here; those of
// MakeCommunicator.
absl::StatusOr<std::unique_ptr<Communicator>> RemakeCommunicator(BackendRequest request);

}  // namespace muster::comm
