// The memory that one call works in on a stream: buffers of the host are staged through pinned
// memory, those of a device are used as they are.
//
// Included in this folder alone: it brings in the CUDA headers.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/comm/nccl/cuda_resources.h"

namespace muster::comm {

// One thread at a time. Destroyed once the stream has done with the call, or does nothing any more;
// `stream` outlives it.
class StreamBuffers {
 public:
  explicit StreamBuffers(DeviceStream& stream) : stream_(stream) {}
  ~StreamBuffers() { stream_.GiveBack(blocks_); }
  StreamBuffers(const StreamBuffers&) = delete;
  StreamBuffers& operator=(const StreamBuffers&) = delete;

  // Memory of the device, or pinned memory of the host; there until the end.
  absl::StatusOr<void*> OnDevice(size_t bytes) { return Take(bytes, /*on_host=*/false); }
  absl::StatusOr<void*> Pinned(size_t bytes) { return Take(bytes, /*on_host=*/true); }

  // Puts a copy to the device on the stream; what it reads may be changed at once if it is the
  // host's.
  absl::Status CopyIn(void* device, const void* from, size_t bytes);
  // What the device reads for `data`, and writes for it. There is one output at most.
  absl::StatusOr<const void*> Input(const void* data, size_t bytes);
  absl::StatusOr<void*> Output(void* data, size_t bytes);

  // Whether the output is the host's: it is in its place after StartOutput, put on the stream
  // behind what writes it, and FinishOutput, once the stream has come so far.
  bool has_host_output() const { return output_.bytes > 0; }
  absl::Status StartOutput();
  void FinishOutput() const;

 private:
  // An output in host memory: copied from `pinned` at the end.
  struct HostOutput {
    void* host = nullptr;
    const void* device = nullptr;
    void* pinned = nullptr;
    size_t bytes = 0;
  };

  absl::StatusOr<void*> Take(size_t bytes, bool on_host);

  DeviceStream& stream_;
  std::vector<DeviceStream::Block> blocks_;
  HostOutput output_;
};

}  // namespace muster::comm
