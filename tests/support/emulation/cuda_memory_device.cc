#include "tests/support/emulation/cuda_memory_device.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "proto/base/status_macros.h"

namespace muster::testing {
namespace {

constexpr size_t kLeastPinned = 4096;

class NoEvent final : public Event {
 public:
  void Record(Queue&) override {}
  void HoldUp(Queue&) const override {}
};

}  // namespace

CudaMemoryDevice::~CudaMemoryDevice() {
  base::MutexLock lock(mu_);
  if (stream_ != nullptr) {
    cuda_.SynchronizeStream(stream_).IgnoreError();
    cuda_.DestroyStream(stream_).IgnoreError();
  }
  for (const Pinned& pinned : pinned_) {
    cuda_.DestroyEvent(pinned.copied).IgnoreError();
    cuda_.FreePinned(pinned.memory).IgnoreError();
  }
}

void CudaMemoryDevice::Fail(const absl::Status& failure) const {
  if (failure.ok()) return;
  base::MutexLock lock(mu_);
  failure_.Update(failure);
}

void* CudaMemoryDevice::TakeMemory(size_t bytes) const {
  const absl::StatusOr<void*> memory = cuda_.Allocate(bytes);
  Fail(memory.status());
  return memory.ok() ? *memory : nullptr;
}

void CudaMemoryDevice::GiveMemory(void* memory) const { Fail(cuda_.Free(memory)); }

absl::StatusOr<CudaStream> CudaMemoryDevice::OpenStream() const {
  base::MutexLock lock(mu_);
  if (stream_ == nullptr) {
    MUSTER_ASSIGN_OR_RETURN(stream_, cuda_.CreateStream());
  }
  return stream_;
}

CudaStream CudaMemoryDevice::stream() const {
  const absl::StatusOr<CudaStream> stream = OpenStream();
  Fail(stream.status());
  return stream.ok() ? *stream : nullptr;
}

void CudaMemoryDevice::CopyBytes(Queue&, const void* from, void* to, size_t bytes) const {
  const CudaStream on = stream();
  if (bytes == 0 || on == nullptr) return;
  Fail(cuda_.MemcpyAsync(to, from, bytes, CopyDirection::kWithinDevice, on));
}

absl::StatusOr<CudaMemoryDevice::Pinned> CudaMemoryDevice::TakePinned(size_t bytes) const {
  for (auto each = pinned_.begin(); each != pinned_.end(); ++each) {
    if (each->bytes < bytes || each->bytes > 4 * std::max(bytes, kLeastPinned)) continue;
    MUSTER_ASSIGN_OR_RETURN(const bool is_free, cuda_.QueryEvent(each->copied));
    if (!is_free) continue;
    const Pinned taken = *each;
    pinned_.erase(each);
    return taken;
  }
  Pinned made = {.bytes = std::bit_ceil(std::max(bytes, kLeastPinned))};
  MUSTER_ASSIGN_OR_RETURN(made.memory, cuda_.AllocatePinned(made.bytes));
  MUSTER_ASSIGN_OR_RETURN(made.copied, cuda_.CreateEvent());
  return made;
}

absl::Status CudaMemoryDevice::TryUpload(const void* from, void* to, size_t bytes) const {
  MUSTER_ASSIGN_OR_RETURN(const CudaStream stream, OpenStream());
  base::MutexLock lock(mu_);
  MUSTER_ASSIGN_OR_RETURN(const Pinned pinned, TakePinned(bytes));
  std::memcpy(pinned.memory, from, bytes);
  pinned_.push_back(pinned);
  MUSTER_RETURN_IF_ERROR(
      cuda_.MemcpyAsync(to, pinned.memory, bytes, CopyDirection::kToDevice, stream));
  return cuda_.RecordEvent(pinned.copied, stream);
}

void CudaMemoryDevice::Upload(Queue&, const void* from, void* to, size_t bytes) const {
  if (bytes > 0) Fail(TryUpload(from, to, bytes));
}

absl::Status CudaMemoryDevice::TryDownload(const void* from, void* to, size_t bytes) const {
  MUSTER_ASSIGN_OR_RETURN(const CudaStream stream, OpenStream());
  if (bytes == 0) return cuda_.SynchronizeStream(stream);
  Pinned pinned;
  {
    base::MutexLock lock(mu_);
    MUSTER_ASSIGN_OR_RETURN(pinned, TakePinned(bytes));
  }
  absl::Status status =
      cuda_.MemcpyAsync(pinned.memory, from, bytes, CopyDirection::kToHost, stream);
  if (status.ok()) status = cuda_.SynchronizeStream(stream);
  if (status.ok()) std::memcpy(to, pinned.memory, bytes);
  base::MutexLock lock(mu_);
  pinned_.push_back(pinned);
  return status;
}

absl::Status CudaMemoryDevice::Download(Queue&, const void* from, void* to, size_t bytes) const {
  {
    base::MutexLock lock(mu_);
    MUSTER_RETURN_IF_ERROR(failure_);
  }
  absl::Status status = TryDownload(from, to, bytes);
  Fail(status);
  return status;
}

std::unique_ptr<Event> CudaMemoryDevice::MakeEvent() const { return std::make_unique<NoEvent>(); }

}  // namespace muster::testing
