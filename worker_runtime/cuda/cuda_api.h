// What the runtime needs of CUDA's runtime API, for one GPU: memory, streams, events and graphs.
//
//   MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<CudaApi> cuda, OpenCuda(0));
//   MUSTER_ASSIGN_OR_RETURN(const CudaStream stream, cuda->CreateStream());
//
// An interface, so that what is built on it runs without a GPU:
// tests/support/emulation/emulated_cuda.h keeps the order of streams and events and no other, and
// finds what relies on more. Of those two, the emulated one is strict where a sentence below says
// "must"; a GPU would give wrong numbers or wait.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_runtime/kernels/launch.h"

namespace muster {

using CudaStream = kernels::StreamHandle;  // a cudaStream_t
struct CudaEvent {
  void* handle = nullptr;  // a cudaEvent_t
};
// One that can be launched.
struct CudaGraph {
  void* handle = nullptr;  // a cudaGraphExec_t
};

enum class CopyDirection { kToDevice, kToHost, kWithinDevice };

struct CudaProperties {
  int number = 0;    // as OpenCuda's
  std::string uuid;  // as GpuIdentity's
  std::string name;  // "NVIDIA H200"
  int major = 0;     // of the compute capability
  int minor = 0;
  int num_multiprocessors = 0;
  size_t shared_bytes_max = 0;  // shared memory that a block may ask for
};

struct CudaMemory {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

// What is put on a stream runs in the order of that stream, later than the call. Streams do not
// wait for each other, or for the default stream, but where StreamWaitEvent says so.
//
// Errors:  kResourceExhausted: the device, or the host, has no memory left. kInternal: CUDA's
//          words; also for what an earlier piece of work failed with.
// Threads: thread-safe; every call works on the GPU that was opened, whichever its thread used
//          before, and leaves the thread at it. What launches kernels on the streams itself calls
//          MakeCurrent first.
class CudaApi {
 public:
  virtual ~CudaApi() = default;

  virtual absl::Status MakeCurrent() = 0;
  virtual absl::StatusOr<CudaProperties> Properties() = 0;
  virtual absl::StatusOr<CudaMemory> MemoryInfo() = 0;
  // What kernels failed with whose end nobody has waited for; ok if nothing is known.
  virtual absl::Status LastError() = 0;

  // --- Memory. It begins with anything, aligned to 256 bytes.

  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // Waits for everything that the device has to do.
  virtual absl::Status Free(void* memory) = 0;
  // Memory of the host, where the device can fetch and leave data by itself.
  virtual absl::StatusOr<void*> AllocatePinned(size_t bytes) = 0;
  virtual absl::Status FreePinned(void* memory) = 0;

  // The host's side must be pinned, and belongs to the copy until it has run.
  virtual absl::Status MemcpyAsync(void* to, const void* from, size_t bytes,
                                   CopyDirection direction, CudaStream stream) = 0;
  // Every byte of the device's memory.
  virtual absl::Status MemsetAsync(void* memory, int value, size_t bytes, CudaStream stream) = 0;

  // --- Streams and events. What was put on a stream before it is destroyed still runs.

  virtual absl::StatusOr<CudaStream> CreateStream() = 0;
  virtual absl::Status DestroyStream(CudaStream stream) = 0;
  // Waits until everything on it has run.
  virtual absl::Status SynchronizeStream(CudaStream stream) = 0;
  // Whether everything on it has run.
  virtual absl::StatusOr<bool> QueryStream(CudaStream stream) = 0;

  // How long the GPU is busy with what `put` puts on the stream, after all that was there before.
  // Waits for both.
  virtual absl::StatusOr<absl::Duration> TimeOf(CudaStream stream,
                                                absl::FunctionRef<void()> put) = 0;

  // Creates an event that keeps no times.
  virtual absl::StatusOr<CudaEvent> CreateEvent() = 0;
  virtual absl::Status DestroyEvent(CudaEvent event) = 0;
  // Makes the event stand for everything that is on the stream now.
  virtual absl::Status RecordEvent(CudaEvent event, CudaStream stream) = 0;
  // Waits until that has run; at once if it was never recorded.
  virtual absl::Status SynchronizeEvent(CudaEvent event) = 0;
  virtual absl::StatusOr<bool> QueryEvent(CudaEvent event) = 0;
  // What is put on `stream` from now on runs after the work that the event marks at this moment.
  virtual absl::Status StreamWaitEvent(CudaStream stream, CudaEvent event) = 0;

  // --- Graphs

  // What is put on `stream` is kept and does not run, with that of streams that wait for an event
  // recorded in the capture; those must be waited for again by `stream` before its end. Nothing may
  // be waited for by the host, or taken from the device, meanwhile.
  virtual absl::Status BeginCapture(CudaStream stream) = 0;
  virtual absl::StatusOr<CudaGraph> EndCapture(CudaStream stream) = 0;
  // All of it as one piece of work on the stream, with the arguments of its capture.
  virtual absl::Status LaunchGraph(CudaGraph graph, CudaStream stream) = 0;
  // Called after the last launch of the graph has run.
  virtual absl::Status DestroyGraph(CudaGraph graph) = 0;
};

// The GPU of that number, as muster/cuda_device.h counts them.
//
// Errors: those of OpenCudaDevice.
absl::StatusOr<std::unique_ptr<CudaApi>> OpenCuda(int device);

}  // namespace muster
