// CUDA's runtime, linked statically: a program that has it starts on machines without a driver.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "muster/cuda_device.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace muster {
namespace {

// `what` as a call is written: its name is said.
absl::Status ToStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // or it would show up in the next call of anybody
  const std::string text =
      absl::StrCat(what.substr(0, what.find('(')), " failed: ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                            : absl::InternalError(text);
}

#define MUSTER_CUDA_RETURN_IF_ERROR(call) MUSTER_RETURN_IF_ERROR(ToStatus((call), #call))

cudaStream_t StreamOf(CudaStream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t EventOf(CudaEvent event) { return static_cast<cudaEvent_t>(event.handle); }
cudaGraphExec_t GraphOf(CudaGraph graph) { return static_cast<cudaGraphExec_t>(graph.handle); }

absl::StatusOr<bool> IsDone(cudaError_t error, absl::string_view what) {
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  MUSTER_RETURN_IF_ERROR(ToStatus(error, what));
  return true;
}

cudaMemcpyKind KindOf(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kToDevice:
      return cudaMemcpyHostToDevice;
    case CopyDirection::kToHost:
      return cudaMemcpyDeviceToHost;
    case CopyDirection::kWithinDevice:
      return cudaMemcpyDeviceToDevice;
  }
  return cudaMemcpyDefault;
}

// Writes a UUID in the form that nvidia-smi uses.
std::string ToString(const CUuuid& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  const auto part = [&hex](size_t from, size_t digits) { return hex.substr(from, digits); };
  return absl::StrCat("GPU-", part(0, 8), "-", part(8, 4), "-", part(12, 4), "-", part(16, 4), "-",
                      part(20, 12));
}

// The UUID of the GPU. CUDA's properties may have that of an instance of MIG, as the driver's
// function has since CUDA 11.4; its first version, which NCCL asks too, has the GPU's. Source: CUDA
// Driver API, "Device Management"; NVIDIA/nccl issue 1716.
std::string UuidOf(int device, const cudaDeviceProp& properties) {
  constexpr unsigned kSince = 9020;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuDeviceGetUuid", &found, kSince,
                                                             cudaEnableDefault, &result);
  if (error != cudaSuccess) cudaGetLastError();
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    return ToString(properties.uuid);
  }
  CUuuid uuid = properties.uuid;
  // The runtime numbers devices as the driver does.
  reinterpret_cast<CUresult (*)(CUuuid*, CUdevice)>(found)(&uuid, device);
  return ToString(uuid);
}

class RealCudaApi final : public CudaApi {
 public:
  explicit RealCudaApi(int device) : device_(device) {}

  // CUDA works on the device of the calling thread.
  absl::Status MakeCurrent() override { return ToStatus(cudaSetDevice(device_), "cudaSetDevice"); }

  absl::StatusOr<CudaProperties> Properties() override {
    cudaDeviceProp properties;
    MUSTER_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device_));
    return CudaProperties{.number = device_,
                          .uuid = UuidOf(device_, properties),
                          .name = properties.name,
                          .major = properties.major,
                          .minor = properties.minor,
                          .num_multiprocessors = properties.multiProcessorCount,
                          .shared_bytes_max = properties.sharedMemPerBlockOptin};
  }
  absl::StatusOr<CudaMemory> MemoryInfo() override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    CudaMemory memory;
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes));
    return memory;
  }
  absl::Status LastError() override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaGetLastError(), "a kernel");
  }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    void* memory = nullptr;
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMalloc(&memory, bytes));
    return memory;
  }
  absl::Status Free(void* memory) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaFree(memory), "cudaFree");
  }
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    void* memory = nullptr;
    MUSTER_CUDA_RETURN_IF_ERROR(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
    return memory;
  }
  absl::Status FreePinned(void* memory) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaFreeHost(memory), "cudaFreeHost");
  }
  absl::Status MemcpyAsync(void* to, const void* from, size_t bytes, CopyDirection direction,
                           CudaStream stream) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaMemcpyAsync(to, from, bytes, KindOf(direction), StreamOf(stream)),
                    "cudaMemcpyAsync");
  }
  absl::Status MemsetAsync(void* memory, int value, size_t bytes, CudaStream stream) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaMemsetAsync(memory, value, bytes, StreamOf(stream)), "cudaMemsetAsync");
  }

  absl::StatusOr<CudaStream> CreateStream() override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    cudaStream_t stream = nullptr;
    MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return static_cast<CudaStream>(stream);
  }
  absl::Status DestroyStream(CudaStream stream) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaStreamDestroy(StreamOf(stream)), "cudaStreamDestroy");
  }
  absl::Status SynchronizeStream(CudaStream stream) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaStreamSynchronize(StreamOf(stream)), "cudaStreamSynchronize");
  }
  absl::StatusOr<bool> QueryStream(CudaStream stream) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return IsDone(cudaStreamQuery(StreamOf(stream)), "cudaStreamQuery");
  }

  absl::StatusOr<absl::Duration> TimeOf(CudaStream stream, absl::FunctionRef<void()> put) override {
    MUSTER_RETURN_IF_ERROR(SynchronizeStream(stream));
    cudaEvent_t begin = nullptr, end = nullptr;
    absl::Status status = ToStatus(cudaEventCreate(&begin), "cudaEventCreate");
    if (status.ok()) status = ToStatus(cudaEventCreate(&end), "cudaEventCreate");
    float milliseconds = 0;
    if (status.ok()) {
      status = ToStatus(cudaEventRecord(begin, StreamOf(stream)), "cudaEventRecord");
      put();
      status.Update(ToStatus(cudaEventRecord(end, StreamOf(stream)), "cudaEventRecord"));
      status.Update(ToStatus(cudaEventSynchronize(end), "cudaEventSynchronize"));
      status.Update(
          ToStatus(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime"));
    }
    for (const cudaEvent_t event : {begin, end}) {
      if (event != nullptr) status.Update(ToStatus(cudaEventDestroy(event), "cudaEventDestroy"));
    }
    MUSTER_RETURN_IF_ERROR(status);
    return absl::Milliseconds(milliseconds);
  }

  absl::StatusOr<CudaEvent> CreateEvent() override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    cudaEvent_t event = nullptr;
    MUSTER_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return CudaEvent{.handle = event};
  }
  absl::Status DestroyEvent(CudaEvent event) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaEventDestroy(EventOf(event)), "cudaEventDestroy");
  }
  absl::Status RecordEvent(CudaEvent event, CudaStream stream) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaEventRecord(EventOf(event), StreamOf(stream)), "cudaEventRecord");
  }
  absl::Status SynchronizeEvent(CudaEvent event) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaEventSynchronize(EventOf(event)), "cudaEventSynchronize");
  }
  absl::StatusOr<bool> QueryEvent(CudaEvent event) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return IsDone(cudaEventQuery(EventOf(event)), "cudaEventQuery");
  }
  absl::Status StreamWaitEvent(CudaStream stream, CudaEvent event) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaStreamWaitEvent(StreamOf(stream), EventOf(event), 0),
                    "cudaStreamWaitEvent");
  }

  absl::Status BeginCapture(CudaStream stream) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    // Thread-local: other threads, such as a communicator's, go on with what they do.
    return ToStatus(cudaStreamBeginCapture(StreamOf(stream), cudaStreamCaptureModeThreadLocal),
                    "cudaStreamBeginCapture");
  }
  absl::StatusOr<CudaGraph> EndCapture(CudaStream stream) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    cudaGraph_t captured = nullptr;
    MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamEndCapture(StreamOf(stream), &captured));
    cudaGraphExec_t graph = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&graph, captured, 0);
    cudaGraphDestroy(captured);
    MUSTER_RETURN_IF_ERROR(ToStatus(error, "cudaGraphInstantiate"));
    return CudaGraph{.handle = graph};
  }
  absl::Status LaunchGraph(CudaGraph graph, CudaStream stream) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaGraphLaunch(GraphOf(graph), StreamOf(stream)), "cudaGraphLaunch");
  }
  absl::Status DestroyGraph(CudaGraph graph) override {
    MUSTER_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaGraphExecDestroy(GraphOf(graph)), "cudaGraphExecDestroy");
  }

 private:
  const int device_;
};

}  // namespace

absl::StatusOr<int> CountCudaDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  cudaGetLastError();
  if (error == cudaErrorNoDevice) return 0;
  return absl::UnavailableError(absl::StrCat(
      error == cudaErrorInsufficientDriver
          ? "device cuda: this machine has no NVIDIA driver, or one that is older than this "
            "program's CUDA"
          : "device cuda: the GPUs cannot be counted",
      " (", cudaGetErrorString(error),
      "); use device cpu, or run it where nvidia-smi lists a GPU"));
}

absl::StatusOr<std::unique_ptr<CudaApi>> OpenCuda(int device) {
  MUSTER_ASSIGN_OR_RETURN(const int count, CountCudaDevices());
  if (count == 0) {
    return absl::UnavailableError(
        "device cuda: this process sees no NVIDIA GPU (does CUDA_VISIBLE_DEVICES name one?); use "
        "device cpu, or run it where nvidia-smi lists a GPU");
  }
  if (device < 0 || device >= count) {
    return absl::InvalidArgumentError(absl::StrCat("device cuda: there is no GPU ", device,
                                                   "; this process sees ", count,
                                                   ", numbered from 0"));
  }
  return std::make_unique<RealCudaApi>(device);
}

}  // namespace muster
