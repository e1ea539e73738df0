#include "worker_runtime/comm/nccl/nccl_registration.h"

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/operation.h"

namespace muster::comm {

absl::StatusOr<void*> RegisterMemory(const NcclLibrary& library, ncclComm_t comm, Buffer memory) {
  if (library.comm_register == nullptr || library.comm_deregister == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("NCCL registers memory from version 2.19 on, and this is ", library.name,
                     "; use a newer one, or register nothing"));
  }
  const int64_t bytes = memory.count * static_cast<int64_t>(SizeOf(memory.dtype));
  void* handle = nullptr;
  MUSTER_RETURN_IF_ERROR(library.ToStatus(
      library.comm_register(comm, memory.data, static_cast<size_t>(bytes), &handle),
      absl::StrCat("registering ", FormatBytes(bytes)), comm));
  return handle;
}

absl::Status DeregisterMemory(const NcclLibrary& library, ncclComm_t comm, void* handle) {
  return library.ToStatus(library.comm_deregister(comm, handle), "giving up registered memory",
                          comm);
}

}  // namespace muster::comm
