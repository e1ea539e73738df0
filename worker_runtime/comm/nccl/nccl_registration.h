// Memory that an NCCL communicator is told of (NCCL 2.19 and later), for as long as it is.
//
// Included in this folder alone: it brings in nccl.h.
//
// NCCL keeps what it was told of by whole pages of the host (src/register/register.cc of 2.30), and
// looks for a buffer by its pages.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/buffer.h"
#include "worker_runtime/comm/nccl/nccl_library.h"

namespace muster::comm {

// What NCCL names it by, for DeregisterMemory; null: it was told to register nothing
// (NCCL_LOCAL_REGISTER=0) or cannot use it, and goes on without.
//
// Errors: kUnimplemented: NCCL is older than 2.19. NCCL's, in its words.
// Threads: that of the communicator's lane.
absl::StatusOr<void*> RegisterMemory(const NcclLibrary& library, ncclComm_t comm, Buffer memory);

// Nothing that `comm` has enqueued works in it any more.
//
// Errors: NCCL's, in its words.
// Threads: that of the communicator's lane.
absl::Status DeregisterMemory(const NcclLibrary& library, ncclComm_t comm, void* handle);

}  // namespace muster::comm
