#include "worker_runtime/comm/shm/ring.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

namespace muster::comm {
namespace {

// How often a waiter looks before it sleeps: a few microseconds, about what a system call costs.
// The cores belong to the threads that compute.
constexpr int kLooks = 500;

}  // namespace

// The waiter counts itself and then looks at `rings` (the kernel does, in one step with going to
// sleep); we change `rings` and then look at the count. So one of the two sees the other.
void Bell::Ring() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  if (waiters.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, &rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool Bell::WaitSince(uint32_t heard, absl::Duration most) {
  for (int i = 0; i < kLooks; ++i) {
    if (rings.load(std::memory_order_relaxed) != heard) return true;
  }
  waiters.fetch_add(1, std::memory_order_seq_cst);
  const timespec time = absl::ToTimespec(most);
  syscall(SYS_futex, &rings, FUTEX_WAIT, heard, &time, nullptr, 0);
  waiters.fetch_sub(1, std::memory_order_seq_cst);
  return rings.load(std::memory_order_relaxed) != heard;
}

size_t ByteRing::space() const {
  return capacity_ - (counters_->written.load(std::memory_order_relaxed) -
                      counters_->read.load(std::memory_order_acquire));
}

void ByteRing::Write(const void* from, size_t used, size_t size) {
  const uint64_t position = counters_->written.load(std::memory_order_relaxed);
  const size_t at = position % capacity_;
  const size_t first = std::min(used, capacity_ - at);
  std::memcpy(bytes_ + at, from, first);
  std::memcpy(bytes_, static_cast<const uint8_t*>(from) + first, used - first);
  counters_->written.store(position + size, std::memory_order_release);
}

size_t ByteRing::available() const {
  return counters_->written.load(std::memory_order_acquire) -
         counters_->read.load(std::memory_order_relaxed);
}

void ByteRing::Peek(void* into, size_t size) const {
  std::memcpy(into, bytes_ + counters_->read.load(std::memory_order_relaxed) % capacity_, size);
}

}  // namespace muster::comm
