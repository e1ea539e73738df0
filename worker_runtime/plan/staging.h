// The memory that a communicator of the gloo back end exchanges in: what comm/gloo and comm/shm
// take by, and exchange_memory.h counts by.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::plan {

// The largest sum for which latency counts for more than bytes.
inline constexpr int64_t kSmallBytes = int64_t{16} << 10;

// A ring between two ranks that map each other's memory, per direction: small enough that what one
// side writes is in the cache when the other side reads it.
inline constexpr int64_t kCollectiveRingBytes = int64_t{1} << 19;
inline constexpr int64_t kTransferRingBytes = int64_t{1} << 18;

// What tells neighbours apart that call different things.
inline constexpr int64_t kCallBytes = 32;

// The sizes of the blocks that the calls of one thread of a communicator stage messages in. They
// are kept from one call to the next: the system's fresh pages cost more than what is done with
// them.
//
// Threads: thread-compatible.
class StagingBlocks {
 public:
  // The most bytes that are kept between calls.
  static constexpr int64_t kMostKept = int64_t{64} << 20;

  // The number of a block of at least so many bytes, which stays taken until GiveBackAll.
  size_t Take(int64_t bytes);
  // Blocks that are not kept have no bytes then.
  void GiveBackAll();

  size_t size() const { return bytes_.size(); }
  int64_t bytes(size_t block) const { return bytes_[block]; }
  // The most bytes of all blocks together, so far.
  int64_t most() const { return most_; }

 private:
  // The first place in by_size_, from `place` on, whose block is not taken.
  size_t FreeFrom(size_t place);
  void Sort();

  std::vector<int64_t> bytes_;   // by block; 0: it is not kept
  std::vector<size_t> by_size_;  // those that were there when all were given back
  std::vector<size_t> next_;     // by place in by_size_: where to look on; itself: it is free
  std::vector<size_t> not_kept_;
  bool is_sorted_ = true;
  int64_t held_ = 0;
  int64_t most_ = 0;
};

}  // namespace muster::plan
