// Memory and the queue of a GPU, as a Device has them; its kernels are a subclass's.
//
// What the host gives or takes goes through pinned memory of this device's own, kept for reuse. Calls
// that return nothing keep the first failure, which the next Download tells.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/device.h"
#include "proto/base/mutex.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace muster::testing {

// Threads: safe.
class CudaMemoryDevice : public Device {
 public:
  // `cuda` outlives this, and this all that it gave.
  explicit CudaMemoryDevice(CudaApi& cuda) : cuda_(cuda) {}
  ~CudaMemoryDevice() override;

  bool has_elements() const final { return true; }
  void* TakeMemory(size_t bytes) const final;
  void GiveMemory(void* memory) const final;
  void CopyBytes(Queue& queue, const void* from, void* to, size_t bytes) const final;
  void Upload(Queue& queue, const void* from, void* to, size_t bytes) const final;
  absl::Status Download(Queue& queue, const void* from, void* to, size_t bytes) const final;
  // One stream, for all lanes: events have nothing to add.
  std::unique_ptr<Event> MakeEvent() const final;

  // Of all its queues, made when it is first needed; null after a failure.
  CudaStream stream() const;
  // A failure of a kernel's launch, say.
  void Fail(const absl::Status& failure) const;

 private:
  struct Pinned {
    void* memory = nullptr;
    size_t bytes = 0;
    CudaEvent copied;  // what it was used for last has run
  };

  absl::StatusOr<CudaStream> OpenStream() const;
  absl::Status TryUpload(const void* from, void* to, size_t bytes) const;
  absl::Status TryDownload(const void* from, void* to, size_t bytes) const;
  // One that is free, or a new one.
  absl::StatusOr<Pinned> TakePinned(size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  CudaApi& cuda_;

  mutable base::Mutex mu_;
  mutable CudaStream stream_ ABSL_GUARDED_BY(mu_) = nullptr;
  mutable std::vector<Pinned> pinned_ ABSL_GUARDED_BY(mu_);
  mutable absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::testing
