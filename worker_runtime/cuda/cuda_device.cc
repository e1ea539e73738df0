#include "worker_runtime/cuda/cuda_device.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

class CudaDeviceEvent final : public Event {
 public:
  CudaDeviceEvent(const CudaDevice& device, CudaEvent event) : device_(device), event_(event) {}
  ~CudaDeviceEvent() override { device_.Keep(device_.cuda().DestroyEvent(event_)); }

  void Record(Queue& queue) override {
    device_.Keep(device_.cuda().RecordEvent(event_, device_.stream(queue)));
  }
  void HoldUp(Queue& queue) const override {
    device_.Keep(device_.cuda().StreamWaitEvent(device_.stream(queue), event_));
  }

 private:
  const CudaDevice& device_;  // outlives its events
  const CudaEvent event_;
};

}  // namespace

CudaDevice::CudaDevice(CudaParts parts)
    : parts_(std::move(parts)), staging_(std::make_unique<Staging>(*parts_.cuda)) {
  for (auto& pool : pools_) pool = std::make_unique<TensorPool>(*this);
}

CudaDevice::~CudaDevice() {
  for (auto& pool : pools_) pool.reset();
  if (one_ != nullptr) cuda().Free(one_).IgnoreError();
  for (const CudaStream stream : streams_) {
    if (stream == nullptr) continue;
    cuda().SynchronizeStream(stream).IgnoreError();
    cuda().DestroyStream(stream).IgnoreError();
  }
}

absl::Status CudaDevice::Begin() {
  for (CudaStream& stream : streams_) {
    MUSTER_ASSIGN_OR_RETURN(stream, cuda().CreateStream());
  }
  MUSTER_ASSIGN_OR_RETURN(void* const one, cuda().Allocate(sizeof(float)));
  one_ = static_cast<float*>(one);
  const float number = 1;
  MUSTER_RETURN_IF_ERROR(staging_->Upload(&number, one_, sizeof(number), streams_[0]));
  return cuda().SynchronizeStream(streams_[0]);
}

const Operations& CudaDevice::operations(DType dtype) const { return CudaOperations(dtype); }

// The pool ends the process, which says why.
void* CudaDevice::TakeMemory(size_t bytes) const {
  const auto memory = cuda().Allocate(bytes);
  if (memory.ok()) return *memory;
  const auto left = cuda().MemoryInfo();
  std::fprintf(stderr, "device cuda: no memory for %zu bytes more (%s)%s\n", bytes,
               std::string(memory.status().message()).c_str(),
               left.ok() ? absl::StrCat(": ", left->free_bytes, " of ", left->total_bytes,
                                        " bytes are free; a smaller batch, recomputing or a plan "
                                        "that shards takes less")
                               .c_str()
                         : "");
  return nullptr;
}

void CudaDevice::GiveMemory(void* memory) const { Keep(cuda().Free(memory)); }

void CudaDevice::CopyBytes(Queue& queue, const void* from, void* to, size_t bytes) const {
  if (bytes == 0) return;
  Keep(cuda().MemcpyAsync(to, from, bytes, CopyDirection::kWithinDevice, stream(queue)));
}

void CudaDevice::Upload(Queue& queue, const void* from, void* to, size_t bytes) const {
  Keep(staging_->Upload(from, to, bytes, stream(queue)));
}

absl::Status CudaDevice::Download(Queue& queue, const void* from, void* to, size_t bytes) const {
  Keep(staging_->Download(from, to, bytes, stream(queue)));
  return status();
}

std::unique_ptr<Event> CudaDevice::MakeEvent() const {
  auto event = cuda().CreateEvent();
  Keep(event.status());
  return std::make_unique<CudaDeviceEvent>(*this, event.ok() ? *event : CudaEvent());
}

Tensor CudaDevice::Scratch(Queue& queue, DType dtype, int64_t count) const {
  TensorPool* const own = pools_[static_cast<size_t>(queue.lane())].get();
  return (queue.memory() != nullptr ? queue.memory() : own)->Allocate(dtype, {count});
}

void CudaDevice::Keep(const absl::Status& status) const {
  if (status.ok()) return;
  base::MutexLock lock(mu_);
  if (failure_.ok()) failure_ = status;
}

void CudaDevice::Keep(kernels::LaunchError error) const {
  if (error != nullptr)
    Keep(absl::InternalError(absl::StrCat("a kernel was not started: ", error)));
}

absl::Status CudaDevice::status() const {
  base::MutexLock lock(mu_);
  return failure_;
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(CudaParts parts) {
  auto device = std::make_unique<CudaDevice>(std::move(parts));
  MUSTER_RETURN_IF_ERROR(device->Begin());
  return device;
}

}  // namespace muster
