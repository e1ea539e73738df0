// Pinned memory that bytes pass through on their way between plain memory of the host and a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/mutex.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace muster {

// Keeps what it took: once the same copies were all on their way at the same time, they take
// nothing from the system, and wait for none before them.
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
  static constexpr size_t kSmallestPlace = 4 << 10;
  static constexpr size_t kLargestPlace = 4 << 20;  // longer copies go in pieces
  static constexpr size_t kNumSizes = 11;           // powers of two from one to the other

  struct Place {
    void* memory = nullptr;
    CudaEvent used;  // its last copy
    size_t size = 0;
  };
  // One of at least so many bytes whose last copy has run. The caller's until Return, behind its
  // copy.
  absl::StatusOr<Place> Take(size_t bytes);
  absl::StatusOr<Place> Make(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Return(const Place& place, CudaStream stream);

  CudaApi& cuda_;
  base::Mutex mu_;
  // Free places by size, as powers of two; the one that was returned first comes first.
  std::array<std::deque<Place>, kNumSizes> places_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of all that were made
};

}  // namespace muster
