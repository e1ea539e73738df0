// Runs kernels written for a GPU on the host: block by block, each thread of a block as a fibre.
//
//   BlockEmulator::SetSchedule(seed);      // another seed, another order of blocks and threads
//   EXPECT_EQ(kernels::cuda::Gelu(…), nullptr);
//
// Fibres change only where threads meet (a barrier, an operation of a warp), and the schedule draws
// who goes on, so a thread that needed a barrier to see what another wrote sees it in some
// schedules and poison in others. Shared memory begins as bytes of 0xff, which is not a number.
// What CUDA leaves undefined where threads meet is said by the launch: threads of a block at
// different barriers, or some at one while others have ended; lanes of a warp at different
// operations; a block of a size that is no multiple of a warp.
//
// It does not show races within what lies between two meetings, and what the caches of a device do.
// Threads: one thread, which everything here belongs to.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "tests/support/emulation/source_place.h"
#include "worker_runtime/kernels/launch.h"

namespace muster::testing {

// The counterpart of CUDA's dim3.
struct KernelIndex {
  unsigned x = 0, y = 0, z = 0;
};

class BlockEmulator {
 public:
  static constexpr int kWarpSize = 32;
  static constexpr size_t kSlotBytes = 32;
  // What a lane gave, by lane.
  using Slots = std::array<std::array<unsigned char, kSlotBytes>, kWarpSize>;

  // Sets the schedule of the launches from now on.
  static void SetSchedule(uint64_t seed);

  // Runs `thread` for every thread of every block. Null, or what went wrong.
  static kernels::LaunchError Run(kernels::LaunchShape shape, const std::function<void()>& thread);

  // Called by the twins of CUDA's functions, within `thread`. Every live thread of the block, or of
  // the warp, comes here from the same place before any goes on.
  static bool MeetInBlock(bool vote, SourcePlace where);  // whether any said true
  static const Slots& MeetInWarp(const void* value, size_t bytes, SourcePlace where);

  // 16 bytes that arrive with the thread's FinishCopies; `from` null: zeros.
  static void StartCopy(void* to, const void* from, SourcePlace where);
  static void FinishCopies();

  // Indices and shared memory of the thread that runs.
  static inline KernelIndex thread_index, block_index, block_size, grid_size;
  static inline void* shared_memory = nullptr;
  // Kernels that were put on streams.
  static inline std::atomic<int64_t> launches = 0;
  // What a block may ask for, or its launch fails; at first as much as an H100 has.
  static inline size_t shared_bytes_max = size_t{227} << 10;
};

}  // namespace muster::testing
