// What two processes do in memory that both map: bytes in a ring, and a bell to wake who waits.
//
// No lock is held by anybody, so that a process may end at any instant.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace muster::comm {

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                  std::atomic<uint32_t>::is_always_lock_free,
              "processes share them");

// Wakes the threads of one process that wait for something in shared memory. Zeroed memory is a
// bell.
//
// Threads: safe, in any process.
struct alignas(64) Bell {
  // Must be called before looking whether what is awaited is there.
  uint32_t Listen() const { return rings.load(std::memory_order_seq_cst); }
  void Ring();
  // Returns once it has rung since Listen gave `heard`, at the latest after `most`; false: it has
  // not. May return false at any time.
  bool WaitSince(uint32_t heard, absl::Duration most);

  std::atomic<uint32_t> rings = 0;
  // A process that ended while it waited stays counted, which costs its peers a system call per
  // ring.
  std::atomic<uint32_t> waiters = 0;
};

// One writer and one reader. All sizes are multiples of kGrain, so that nothing of that size is cut
// where the ring begins again.
//
// Threads: one writes, one reads.
class ByteRing {
 public:
  static constexpr size_t kGrain = 16;
  // Zeroed memory is an empty ring.
  struct Counters {
    alignas(64) std::atomic<uint64_t> written;  // by the writer, ever
    alignas(64) std::atomic<uint64_t> read;     // by the reader, ever
  };

  ByteRing() = default;
  // Both outlive it.
  ByteRing(Counters* counters, uint8_t* bytes, size_t capacity)
      : counters_(counters), bytes_(bytes), capacity_(capacity) {}

  // The writer's. Write takes `size` of at most space(), whose last bytes beyond `used` are
  // padding.
  size_t space() const;
  void Write(const void* from, size_t used, size_t size);
  uint64_t written() const { return counters_->written.load(std::memory_order_relaxed); }
  bool IsReadUpTo(uint64_t position) const {
    return counters_->read.load(std::memory_order_acquire) >= position;
  }

  // The reader's, alike.
  size_t available() const;
  // Hands `used` bytes to take(from, count), in at most two parts that begin at a multiple of
  // kGrain.
  template <typename Take>
  void Read(size_t used, size_t size, Take take) {
    const uint64_t position = counters_->read.load(std::memory_order_relaxed);
    const size_t at = position % capacity_;
    const size_t first = std::min(used, capacity_ - at);
    take(bytes_ + at, first);
    if (used > first) take(bytes_, used - first);
    counters_->read.store(position + size, std::memory_order_release);
  }
  // Copies the next bytes without taking them. `size` is at most available() and kGrain.
  void Peek(void* into, size_t size) const;

 private:
  Counters* counters_ = nullptr;
  uint8_t* bytes_ = nullptr;
  size_t capacity_ = 0;
};

constexpr size_t RoundUpToGrain(size_t bytes) {
  return (bytes + ByteRing::kGrain - 1) / ByteRing::kGrain * ByteRing::kGrain;
}

}  // namespace muster::comm
