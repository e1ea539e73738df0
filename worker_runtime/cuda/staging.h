// Pinned memory that bytes pass through on their way between plain memory of the host and a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/mutex.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace muster {

// Keeps what it took: after the first step the same copies take nothing from the system, and wait for none
// before them.
//
// Threads: safe.
class Staging {
 public:
  // `cuda` outlives it, and so does all that it put on streams.
  explicit Staging(CudaApi& cuda) : cuda_(cuda) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // `from` may be used again at once. Errors: CudaApi's.
  absl::Status Upload(const void* from, void* to, size_t bytes, CudaStream stream);
  // Waits until everything on the stream has run, and the copy. Errors: CudaApi's.
  absl::Status Download(const void* from, void* to, size_t bytes, CudaStream stream);

 private:
  struct Place {
    void* memory = nullptr;
    size_t bytes = 0;
    CudaEvent used;         // its last copy
    bool is_taken = false;  // by a caller, until that copy is on its stream
  };
  // One whose last copy has run.
  absl::StatusOr<Place*> Take(size_t bytes);
  absl::StatusOr<Place*> Make(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Return(Place* place, CudaStream stream);

  CudaApi& cuda_;
  base::Mutex mu_;
  std::vector<std::unique_ptr<Place>> places_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster
