#include "worker_runtime/cuda/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "muster/cuda_device.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

// The bytes from which on a copy waits for an earlier one rather than take more; but each size has
// a place.
constexpr size_t kMostBytes = 64 << 20;
// In each stream the place that was used first is free first; the lanes of a device have that many.
// Were all places asked, a host that is far ahead of its GPU would ask thousands for each copy.
constexpr size_t kMostAsked = 3;

}  // namespace

Staging::~Staging() {
  for (const auto& of_size : places_) {
    for (const Place& place : of_size) {
      cuda_.SynchronizeEvent(place.used).IgnoreError();
      cuda_.DestroyEvent(place.used).IgnoreError();
      cuda_.FreePinned(place.memory).IgnoreError();
    }
  }
}

absl::StatusOr<Staging::Place> Staging::Make(size_t size) {
  Place place = {.size = size};
  MUSTER_ASSIGN_OR_RETURN(place.used, cuda_.CreateEvent());
  const auto memory = cuda_.AllocatePinned(kSmallestPlace << size);
  if (!memory.ok()) {
    cuda_.DestroyEvent(place.used).IgnoreError();
    return memory.status();
  }
  place.memory = *memory;
  bytes_ += kSmallestPlace << size;
  return place;
}

absl::StatusOr<Staging::Place> Staging::Take(size_t bytes) {
  static_assert(kSmallestPlace << (kNumSizes - 1) == kLargestPlace);
  const size_t size =
      std::countr_zero(std::bit_ceil(std::max(bytes, kSmallestPlace)) / kSmallestPlace);
  base::MutexLock lock(mu_);
  std::deque<Place>& used = places_[size];
  const size_t asked = std::min(used.size(), kMostAsked);
  size_t chosen = 0;
  for (; chosen < asked; ++chosen) {
    MUSTER_ASSIGN_OR_RETURN(const bool is_free, cuda_.QueryEvent(used[chosen].used));
    if (is_free) break;
  }
  if (chosen == asked) {
    static_assert(kMostBytes + 2 * kLargestPlace == size_t{kCudaPinnedBytesMax});
    if (used.empty() || bytes_ + (kSmallestPlace << size) <= kMostBytes) return Make(size);
    chosen = 0;
    MUSTER_RETURN_IF_ERROR(cuda_.SynchronizeEvent(used.front().used));
  }
  const Place place = used[chosen];
  used.erase(used.begin() + static_cast<std::ptrdiff_t>(chosen));
  return place;
}

absl::Status Staging::Return(const Place& place, CudaStream stream) {
  const absl::Status status = cuda_.RecordEvent(place.used, stream);
  base::MutexLock lock(mu_);
  places_[place.size].push_back(place);
  return status;
}

absl::Status Staging::Upload(const void* from, void* to, size_t bytes, CudaStream stream) {
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(bytes - done, kLargestPlace);
    MUSTER_ASSIGN_OR_RETURN(const Place place, Take(piece));
    std::memcpy(place.memory, static_cast<const char*>(from) + done, piece);
    const absl::Status copied = cuda_.MemcpyAsync(static_cast<char*>(to) + done, place.memory,
                                                  piece, CopyDirection::kToDevice, stream);
    const absl::Status returned = Return(place, stream);
    MUSTER_RETURN_IF_ERROR(copied);
    MUSTER_RETURN_IF_ERROR(returned);
    done += piece;
  }
  return absl::OkStatus();
}

absl::Status Staging::Download(const void* from, void* to, size_t bytes, CudaStream stream) {
  if (bytes == 0) return cuda_.SynchronizeStream(stream);
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(bytes - done, kLargestPlace);
    MUSTER_ASSIGN_OR_RETURN(const Place place, Take(piece));
    absl::Status status = cuda_.MemcpyAsync(place.memory, static_cast<const char*>(from) + done,
                                            piece, CopyDirection::kToHost, stream);
    if (status.ok()) status = cuda_.SynchronizeStream(stream);
    if (status.ok()) std::memcpy(static_cast<char*>(to) + done, place.memory, piece);
    const absl::Status returned = Return(place, stream);
    MUSTER_RETURN_IF_ERROR(status);
    MUSTER_RETURN_IF_ERROR(returned);
    done += piece;
  }
  return absl::OkStatus();
}

}  // namespace muster
