// Runs a kernel of PTX on the host, block by block, as a GPU might and no luckier.
//
//   PtxMemory memory;
//   void* array = memory.Take(1024);
//   EXPECT_EQ(RunPtx(entry, {.blocks_x = 4, .threads = 128}, arguments, memory, seed, &traffic),
//   "");
//
// Each lane runs by itself until it meets others: at a barrier, or in an operation of its warp.
// Which goes first is drawn from a seed. What a GPU would leave to chance ends the run with a
// sentence: an access that is misaligned, outside of every array or to bytes that nobody wrote;
// shared memory that two threads use without a meeting between them, one of them writing; a copy
// that is read before it was waited for; lanes of a warp, or threads of a block, that meet at
// different places or whose others have ended; a register that has no value.
//
// It does not show what ptxas makes of the text, rounding of a tile's product on the way, time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/worker_runtime/cuda/ptx/ptx_program.h"

namespace muster::testing {

// Global memory of kernels: arrays, each of which knows which of its bytes were written.
class PtxMemory {
 public:
  // What a GPU's memory moves at a time.
  static constexpr size_t kSectorBytes = 32;
  struct Array {
    std::vector<unsigned char> bytes;
    std::vector<bool> written;
    // The launches that last read and last wrote each sector.
    std::vector<int64_t> read_by, written_by;
    size_t size = 0;  // `bytes` may hold more, so that there is an address
    uint64_t begin() const { return reinterpret_cast<uint64_t>(bytes.data()); }
  };

  // Aligned to 16 bytes.
  void* Take(size_t bytes);
  void GiveBack(void* memory);
  // Marks what the host has written.
  void MarkWritten(const void* memory, size_t bytes);
  // The array that has the address or ends there; null: none.
  Array* Find(uint64_t address);
  int64_t CountLaunch() { return ++launches_; }

 private:
  std::map<uint64_t, Array> arrays_;
  int64_t launches_ = 0;
};

struct PtxLaunch {
  unsigned blocks_x = 1;
  unsigned blocks_y = 1;
  unsigned threads = 32;
  size_t shared_bytes = 0;
};

// What the lanes of a launch asked for, added up.
struct PtxTraffic {
  int64_t launches = 0;
  int64_t instructions = 0;  // of lanes
  int64_t bytes_read = 0;    // of global memory
  int64_t bytes_written = 0;
  // The same of each sector once, as if the cache held all that a launch works on: what it moves at
  // least.
  int64_t sector_bytes_read = 0;
  int64_t sector_bytes_written = 0;
};

// `arguments`: entry.parameter_bytes of them. Empty, or what is wrong.
std::string RunPtx(const PtxEntry& entry, PtxLaunch launch,
                   const std::vector<unsigned char>& arguments, PtxMemory& memory, uint64_t seed,
                   PtxTraffic* traffic);

}  // namespace muster::testing
