// NCCL as a backend, or the reason why this build has none: nccl_communicator.cc or
// nccl_unavailable.cc, picked by CMake.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/comm/backend.h"

namespace muster::comm {

// Waits for the other ranks. The store and the prefix serve for any number of ranks, one included.
//
// Errors: kUnimplemented: this build has no NCCL. kUnavailable: this machine has no NVIDIA GPU, no
//         driver, or no NCCL library, or a rank cannot be reached: in words, with what to do.
//         kInvalidArgument: NCCL_SOCKET_IFNAME fits no interface; more ranks than GPUs.
//         kDeadlineExceeded: names the ranks that did not come.
absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(BackendRequest request);

// "NCCL 2.19.3 (/usr/local/cuda/lib64/libnccl.so.2)": the file that is opened for it.
//
// Errors: kUnimplemented: this build has no NCCL. kUnavailable: this machine has none, or one that
//         is too old.
absl::StatusOr<std::string> NameNccl();

}  // namespace muster::comm
