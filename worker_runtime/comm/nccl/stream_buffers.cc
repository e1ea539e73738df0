#include "worker_runtime/comm/nccl/stream_buffers.h"

#include <cstring>

#include "proto/base/status_macros.h"

namespace muster::comm {

absl::StatusOr<void*> StreamBuffers::Take(size_t bytes, bool on_host) {
  MUSTER_ASSIGN_OR_RETURN(const DeviceStream::Block block, stream_.Take(bytes, on_host));
  blocks_.push_back(block);
  return block.data;
}

// Pageable memory goes through pinned memory first: CUDA would wait for the stream otherwise.
absl::Status StreamBuffers::CopyIn(void* device, const void* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (!IsDeviceMemory(from)) {
    MUSTER_ASSIGN_OR_RETURN(void* const pinned, Pinned(bytes));
    std::memcpy(pinned, from, bytes);
    from = pinned;
  }
  MUSTER_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(device, from, bytes, cudaMemcpyDefault, stream_.get()));
  return absl::OkStatus();
}

absl::StatusOr<const void*> StreamBuffers::Input(const void* data, size_t bytes) {
  if (bytes == 0 || IsDeviceMemory(data)) return data;
  MUSTER_ASSIGN_OR_RETURN(void* const device, OnDevice(bytes));
  MUSTER_RETURN_IF_ERROR(CopyIn(device, data, bytes));
  return device;
}

absl::StatusOr<void*> StreamBuffers::Output(void* data, size_t bytes) {
  if (bytes == 0 || IsDeviceMemory(data)) return data;
  MUSTER_ASSIGN_OR_RETURN(void* const device, OnDevice(bytes));
  MUSTER_ASSIGN_OR_RETURN(void* const pinned, Pinned(bytes));
  output_ = {.host = data, .device = device, .pinned = pinned, .bytes = bytes};
  return device;
}

absl::Status StreamBuffers::StartOutput() {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(output_.pinned, output_.device, output_.bytes,
                                              cudaMemcpyDeviceToHost, stream_.get()));
  return absl::OkStatus();
}

void StreamBuffers::FinishOutput() const {
  if (has_host_output()) std::memcpy(output_.host, output_.pinned, output_.bytes);
}

}  // namespace muster::comm
