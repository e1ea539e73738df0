#include "worker_runtime/cuda/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "proto/base/status_macros.h"

namespace muster {
namespace {

constexpr size_t kSmallestPlace = 4 << 10;
constexpr size_t kLargestPlace = 4 << 20;  // longer copies go in pieces
// From then on a copy waits for an earlier one rather than take more.
constexpr size_t kMostBytes = 64 << 20;

}  // namespace

Staging::~Staging() {
  for (const auto& place : places_) {
    cuda_.SynchronizeEvent(place->used).IgnoreError();
    cuda_.DestroyEvent(place->used).IgnoreError();
    cuda_.FreePinned(place->memory).IgnoreError();
  }
}

absl::StatusOr<Staging::Place*> Staging::Make(size_t bytes) {
  auto place = std::make_unique<Place>();
  place->bytes = std::bit_ceil(std::max(bytes, kSmallestPlace));
  MUSTER_ASSIGN_OR_RETURN(place->used, cuda_.CreateEvent());
  auto memory = cuda_.AllocatePinned(place->bytes);
  if (!memory.ok()) {
    cuda_.DestroyEvent(place->used).IgnoreError();
    return memory.status();
  }
  place->memory = *memory;
  bytes_ += place->bytes;
  places_.push_back(std::move(place));
  return places_.back().get();
}

absl::StatusOr<Staging::Place*> Staging::Take(size_t bytes) {
  base::MutexLock lock(mu_);
  Place* chosen = nullptr;
  Place* busy = nullptr;
  for (const auto& place : places_) {
    if (place->is_taken || place->bytes < bytes) continue;
    MUSTER_ASSIGN_OR_RETURN(const bool done, cuda_.QueryEvent(place->used));
    Place*& kind = done ? chosen : busy;
    if (kind == nullptr || place->bytes < kind->bytes) kind = place.get();
  }
  if (chosen == nullptr && busy != nullptr && bytes_ >= kMostBytes) {
    MUSTER_RETURN_IF_ERROR(cuda_.SynchronizeEvent(busy->used));
    chosen = busy;
  }
  if (chosen == nullptr) {
    MUSTER_ASSIGN_OR_RETURN(chosen, Make(bytes));
  }
  chosen->is_taken = true;
  return chosen;
}

absl::Status Staging::Return(Place* place, CudaStream stream) {
  const absl::Status status = cuda_.RecordEvent(place->used, stream);
  base::MutexLock lock(mu_);
  place->is_taken = false;
  return status;
}

absl::Status Staging::Upload(const void* from, void* to, size_t bytes, CudaStream stream) {
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(bytes - done, kLargestPlace);
    MUSTER_ASSIGN_OR_RETURN(Place* const place, Take(piece));
    std::memcpy(place->memory, static_cast<const char*>(from) + done, piece);
    const absl::Status copied = cuda_.MemcpyAsync(static_cast<char*>(to) + done, place->memory,
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
    MUSTER_ASSIGN_OR_RETURN(Place* const place, Take(piece));
    absl::Status status = cuda_.MemcpyAsync(place->memory, static_cast<const char*>(from) + done,
                                            piece, CopyDirection::kToHost, stream);
    if (status.ok()) status = cuda_.SynchronizeStream(stream);
    if (status.ok()) std::memcpy(static_cast<char*>(to) + done, place->memory, piece);
    const absl::Status returned = Return(place, stream);
    MUSTER_RETURN_IF_ERROR(status);
    MUSTER_RETURN_IF_ERROR(returned);
    done += piece;
  }
  return absl::OkStatus();
}

}  // namespace muster
