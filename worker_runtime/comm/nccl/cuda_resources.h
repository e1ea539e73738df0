// What the NCCL backend owns of a CUDA device.
//
// Included in this folder alone: it brings in the CUDA headers.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::comm {

// Ok for cudaSuccess, else names `what` and CUDA's words.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

#define MUSTER_CUDA_RETURN_IF_ERROR(call) MUSTER_RETURN_IF_ERROR(CudaStatus((call), #call))

// The GPU of the worker with that local rank: the only one it sees, else that of its number.
//
// Errors: kUnavailable: no driver or no GPU. kInvalidArgument: fewer GPUs than that.
absl::StatusOr<int> ChooseDevice(int local_rank);

// Makes `device` the current one of this thread, for good: of threads of our own.
void UseDevice(int device);

// Makes `device` the current one of this thread while it lives. Afterwards the thread has the
// context that it had, or none: to name another device would make a context on it, half a gigabyte
// of its memory.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  CUcontext previous_ = nullptr;
};

// Whether the GPU can use `data` as it is: memory of a device, or managed by CUDA.
bool IsDeviceMemory(const void* data);

// A stream, and memory that is used in its order. Memory is taken for an operation and given back
// by name; nothing is freed, which could wait for the device, before the end.
//
// One thread at a time.
class DeviceStream {
 public:
  static absl::StatusOr<DeviceStream> Make();
  ~DeviceStream();
  DeviceStream(DeviceStream&& other) noexcept;
  DeviceStream& operator=(DeviceStream&&) = delete;

  cudaStream_t get() const { return stream_; }

  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
    bool on_host = false;  // pinned
    friend bool operator==(const Block&, const Block&) = default;
  };
  absl::StatusOr<Block> Take(size_t bytes, bool on_host);
  void GiveBack(const std::vector<Block>& blocks);

  absl::StatusOr<cudaEvent_t> TakeEvent();
  void GiveBackEvent(cudaEvent_t event) { free_events_.push_back(event); }

 private:
  explicit DeviceStream(cudaStream_t stream) : stream_(stream) {}

  cudaStream_t stream_ = nullptr;
  std::vector<Block> free_;
  std::vector<Block> all_;
  std::vector<cudaEvent_t> free_events_;
  std::vector<cudaEvent_t> all_events_;
};

}  // namespace muster::comm
