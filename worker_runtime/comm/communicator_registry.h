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

// Waits for the other ranks. A single rank needs neither network nor store.
//
// Errors: kInvalidArgument: no such backend; loopback for several processes; an interface that
//         does not exist; kUnimplemented: a backend that this build lacks, and how to get it;
//         others: the backend's.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(const std::string& backend,
                                                               BackendRequest request);

// By the backend that request.former was made by; ranks without one call MakeCommunicator with the
// same request.
//
// Errors: kInvalidArgument: there is no former one, or it was not made here; those of
// MakeCommunicator.
absl::StatusOr<std::unique_ptr<Communicator>> RemakeCommunicator(BackendRequest request);

}  // namespace muster::comm
