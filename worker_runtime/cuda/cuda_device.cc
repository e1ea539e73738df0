#include "worker_runtime/cuda/cuda_device.h"

#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/fatal_error.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/attention.h"
#include "worker_runtime/nn/meta_gpu.h"
#include "worker_runtime/nn/operations.h"

namespace muster {
namespace {

class CapturedGraph final : public CapturedWork {
 public:
  // `stream`: where it is launched.
  CapturedGraph(const CudaDevice& device, CudaGraph graph, CudaStream stream)
      : device_(device), graph_(graph), stream_(stream) {}
  ~CapturedGraph() override {
    device_.Keep(device_.cuda().SynchronizeStream(stream_));
    device_.Keep(device_.cuda().DestroyGraph(graph_));
  }

  void PutOn(Queue& queue) const override {
    MUSTER_CHECK(device_.stream(queue) == stream_);
    device_.Keep(device_.cuda().LaunchGraph(graph_, stream_));
  }

 private:
  const CudaDevice& device_;  // outlives what it captured
  const CudaGraph graph_;
  const CudaStream stream_;
};

}  // namespace

class CudaDevice::DeviceEvent final : public Event {
 public:
  DeviceEvent(const CudaDevice& device, CudaEvent event)
      : device_(device), events_(device.events_), event_(event) {}
  // A queue that was held up by it stays so: CUDA looks at what an event stands for when the wait
  // is put there.
  ~DeviceEvent() override {
    base::MutexLock lock(events_->mu);
    if (event_.handle != nullptr) events_->free.push_back(event_);
  }

  void Record(Queue& queue) override {
    device_.Keep(device_.cuda().RecordEvent(event_, device_.stream(queue)));
  }
  void HoldUp(Queue& queue) const override {
    device_.Keep(device_.cuda().StreamWaitEvent(device_.stream(queue), event_));
  }
  void* native() const override { return event_.handle; }

 private:
  const CudaDevice& device_;
  const std::shared_ptr<Events> events_;
  const CudaEvent event_;
};

namespace {

// The library says what it works in, and may compile kernels for that. What it refuses is left to
// our kernels.
std::unique_ptr<const Device> MetaOf(const CudaParts& parts) {
  AttentionLibrary* const library = parts.attention.get();
  if (library == nullptr) return nullptr;
  const bool same_bits = parts.attention_same_bits;
  return MakeMetaOfGpu(same_bits ? GpuAttention::kLibrarySameBits : GpuAttention::kLibrary,
                       [library, same_bits](const kernels::AttentionShape& shape,
                                            DType type) -> kernels::AttentionWorkspace {
                         const LibraryAttention attention = {shape, type, same_bits};
                         if (!library->Prepare(attention).ok()) return {};
                         return library->WorkspaceOf(attention);
                       });
}

}  // namespace

CudaDevice::CudaDevice(CudaParts parts)
    : parts_(std::move(parts)),
      staging_(std::make_unique<Staging>(*parts_.cuda)),
      gelu_ways_(parts_.times_gelu ? std::make_unique<GeluWays>() : nullptr),
      meta_(MetaOf(parts_)) {
  for (auto& pool : pools_) pool = std::make_unique<TensorPool>(*this);
}

CudaDevice::~CudaDevice() {
  for (auto& pool : pools_) pool.reset();
  if (one_ != nullptr) cuda().Free(one_).IgnoreError();
  base::MutexLock lock(events_->mu);
  for (const CudaEvent event : events_->all) cuda().DestroyEvent(event).IgnoreError();
  for (const CudaStream stream : streams_) {
    if (stream != nullptr) cuda().SynchronizeStream(stream).IgnoreError();
  }
  parts_.attention.reset();  // its kernels have run, and it knows the streams
  for (const CudaStream stream : streams_) {
    if (stream != nullptr) cuda().DestroyStream(stream).IgnoreError();
  }
}

absl::Status CudaDevice::Begin() {
  MUSTER_ASSIGN_OR_RETURN(const CudaProperties properties, cuda().Properties());
  shared_bytes_max_ = properties.shared_bytes_max;
  for (CudaStream& stream : streams_) {
    MUSTER_ASSIGN_OR_RETURN(stream, cuda().CreateStream());
  }
  MUSTER_ASSIGN_OR_RETURN(void* const one, cuda().Allocate(sizeof(float)));
  one_ = static_cast<float*>(one);
  const float number = 1;
  MUSTER_RETURN_IF_ERROR(staging_->Upload(&number, one_, sizeof(number), streams_[0]));
  return cuda().SynchronizeStream(streams_[0]);
}

std::optional<GpuIdentity> CudaDevice::gpu() const {
  const auto properties = cuda().Properties();
  if (!properties.ok()) return std::nullopt;
  return GpuIdentity{.number = properties->number, .uuid = properties->uuid};
}

std::optional<DeviceMemory> CudaDevice::memory() const {
  const auto memory = cuda().MemoryInfo();
  if (!memory.ok()) return std::nullopt;
  return DeviceMemory{.free_bytes = static_cast<int64_t>(memory->free_bytes),
                      .total_bytes = static_cast<int64_t>(memory->total_bytes)};
}

void* CudaDevice::TakeMemory(size_t bytes) const {
  const auto memory = cuda().Allocate(bytes);
  if (memory.ok()) return *memory;
  const auto left = cuda().MemoryInfo();
  FatalError(absl::StrCat(
      "device cuda: no memory for ", bytes, " bytes more (", memory.status().message(), ")",
      left.ok() ? absl::StrCat(": ", left->free_bytes, " of ", left->total_bytes, " bytes are free")
                : "",
      "; a smaller batch, recomputing or a plan that shards takes less"));
}

void CudaDevice::GiveMemory(void* memory) const { Keep(cuda().Free(memory)); }

void CudaDevice::CopyBytes(Queue& queue, const void* from, void* to, size_t bytes) const {
  if (bytes == 0) return;
  Keep(cuda().MemcpyAsync(to, from, bytes, CopyDirection::kWithinDevice, stream(queue)));
}

void CudaDevice::Upload(Queue& queue, const void* from, void* to, size_t bytes) const {
  if (const absl::Status may = CheckMayCross(); !may.ok()) return Keep(may);
  Keep(staging_->Upload(from, to, bytes, stream(queue)));
}

absl::Status CudaDevice::Download(Queue& queue, const void* from, void* to, size_t bytes) const {
  if (absl::Status may = CheckMayCross(); !may.ok()) {
    Keep(may);
    return may;
  }
  Keep(staging_->Download(from, to, bytes, stream(queue)));
  return status();
}

std::unique_ptr<Event> CudaDevice::MakeEvent() const {
  const absl::StatusOr<CudaEvent> event = TakeEvent();
  Keep(event.status());
  return std::make_unique<DeviceEvent>(*this, event.ok() ? *event : CudaEvent());
}

bool CudaDevice::is_capturing() const {
  base::MutexLock lock(mu_);
  return is_capturing_;
}

absl::Status CudaDevice::CheckMayCross() const {
  if (!is_capturing()) return absl::OkStatus();
  return absl::InternalError(
      "device cuda: bytes cross to the GPU or back while work is captured for a graph");
}

absl::Status CudaDevice::BeginCapture(Queue& queue) const {
  MUSTER_RETURN_IF_ERROR(cuda().BeginCapture(stream(queue)));
  base::MutexLock lock(mu_);
  is_capturing_ = true;
  capture_failure_ = absl::OkStatus();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CapturedWork>> CudaDevice::EndCapture(Queue& queue) const {
  const auto graph = cuda().EndCapture(stream(queue));
  absl::Status failure;
  {
    base::MutexLock lock(mu_);
    is_capturing_ = false;
    failure = std::exchange(capture_failure_, absl::OkStatus());
  }
  MUSTER_RETURN_IF_ERROR(graph.status());
  auto work = std::make_unique<CapturedGraph>(*this, *graph, stream(queue));
  MUSTER_RETURN_IF_ERROR(failure);
  return work;
}

absl::StatusOr<CudaEvent> CudaDevice::TakeEvent() const {
  base::MutexLock lock(events_->mu);
  if (events_->free.empty()) {
    MUSTER_ASSIGN_OR_RETURN(const CudaEvent made, cuda().CreateEvent());
    events_->all.push_back(made);
    return made;
  }
  const CudaEvent event = events_->free.back();
  events_->free.pop_back();
  return event;
}

Tensor CudaDevice::Scratch(Queue& queue, DType dtype, int64_t count) const {
  TensorPool* const own = pools_[static_cast<size_t>(queue.lane())].get();
  return (queue.memory() != nullptr ? queue.memory() : own)->Allocate(dtype, {count});
}

// Tests bring kernels of the host, which work in other memory.
std::string CudaDevice::notes() const {
  const bool has_both = !parts_.products_note.empty() && !parts_.attention_note.empty();
  return absl::StrCat(parts_.products_note, has_both ? "; " : "", parts_.attention_note);
}

const Device& CudaDevice::meta() const {
  if (operations(DType::kF32).head_loss == nullptr) return Device::Meta();
  return meta_ == nullptr ? MetaOfGpus() : *meta_;
}

bool CudaDevice::DoesWithout(const absl::Status& refusal) const {
  if (parts_.attention_must) {
    Keep(refusal);
    return false;
  }
  base::MutexLock lock(mu_);
  if (!std::exchange(said_without_, true)) {
    std::fprintf(stderr, "device cuda: attention by our kernels: %s\n",
                 std::string(refusal.message()).c_str());
  }
  return true;
}

void CudaDevice::Keep(const absl::Status& status) const {
  if (status.ok()) return;
  base::MutexLock lock(mu_);
  absl::Status& first = is_capturing_ ? capture_failure_ : failure_;
  if (first.ok()) first = status;
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
