// The twin of worker_runtime/kernels/simt.h on the host: `.cu` files that are compiled as plain C++
// with this folder in front of the include path run on the block emulator, lane by lane the same.
// Nothing of CUDA is needed.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "tests/support/emulation/block_emulator.h"
#include "tests/support/emulation/emulated_stream.h"
#include "worker_runtime/kernels/cast.h"
#include "worker_runtime/kernels/half.h"
#include "worker_runtime/kernels/launch.h"

// CUDA's words for where a function runs, which g++ does not know.
#define __global__
#define __device__
#define __launch_bounds__(...)

inline constexpr const muster::testing::KernelIndex& threadIdx =
    muster::testing::BlockEmulator::thread_index;
inline constexpr const muster::testing::KernelIndex& blockIdx =
    muster::testing::BlockEmulator::block_index;
inline constexpr const muster::testing::KernelIndex& blockDim =
    muster::testing::BlockEmulator::block_size;
inline constexpr const muster::testing::KernelIndex& gridDim =
    muster::testing::BlockEmulator::grid_size;

inline void __syncthreads(
    muster::testing::SourcePlace where = muster::testing::SourcePlace::current()) {
  muster::testing::BlockEmulator::MeetInBlock(false, where);
}

namespace muster::kernels::simt {

inline constexpr int kWarpSize = 32;

// A launch without a stream runs at once.
template <typename... Parameters, typename... Arguments>
LaunchError Launch(void (*kernel)(Parameters...), LaunchShape shape, StreamHandle stream,
                   Arguments... arguments) {
  ++testing::BlockEmulator::launches;
  const auto run = [=]() -> std::string {
    const LaunchError error =
        testing::BlockEmulator::Run(shape, [&] { kernel(static_cast<Parameters>(arguments)...); });
    return error == nullptr ? "" : error;
  };
  if (stream != nullptr) return testing::EmulatedStream::Of(stream).Enqueue(run);
  thread_local std::string failure;
  failure = run();
  return failure.empty() ? nullptr : failure.c_str();
}

inline void* SharedMemory() { return testing::BlockEmulator::shared_memory; }

inline int Lane() { return static_cast<int>(threadIdx.x % kWarpSize); }
inline int Warp() { return static_cast<int>(threadIdx.x / kWarpSize); }

inline void SyncWarp(muster::testing::SourcePlace where = muster::testing::SourcePlace::current()) {
  testing::BlockEmulator::MeetInWarp(nullptr, 0, where);
}

// What every lane gives, by lane.
template <typename T>
std::array<T, kWarpSize> Exchange(const T& value, muster::testing::SourcePlace where) {
  const auto& slots = testing::BlockEmulator::MeetInWarp(&value, sizeof(T), where);
  std::array<T, kWarpSize> values;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    std::memcpy(&values[lane], slots[lane].data(), sizeof(T));
  }
  return values;
}

template <typename T>
T ShuffleXor(T value, int mask,
             muster::testing::SourcePlace where = muster::testing::SourcePlace::current()) {
  return Exchange(value, where)[(Lane() ^ mask) % kWarpSize];
}

inline unsigned Ballot(
    bool vote, muster::testing::SourcePlace where = muster::testing::SourcePlace::current()) {
  unsigned bits = 0;
  const auto votes = Exchange(vote, where);
  for (int lane = 0; lane < kWarpSize; ++lane) bits |= static_cast<unsigned>(votes[lane]) << lane;
  return bits;
}
inline int CountBits(unsigned bits) { return __builtin_popcount(bits); }

inline bool AnyInBlock(
    bool vote, muster::testing::SourcePlace where = muster::testing::SourcePlace::current()) {
  return testing::BlockEmulator::MeetInBlock(vote, where);
}

// Nothing arrives before FinishCopies: who reads too early sees what was there.
inline void StartCopy(
    void* to, const void* from, bool valid,
    muster::testing::SourcePlace where = muster::testing::SourcePlace::current()) {
  testing::BlockEmulator::StartCopy(to, valid ? from : nullptr, where);
}
inline void FinishCopies() { testing::BlockEmulator::FinishCopies(); }

inline float FloatOfHalf(Half x) {
  float wide;
  Cast().f16_to_f32(&x.bits, &wide, 1);
  return wide;
}
inline Half HalfOfFloat(float x) {
  Half narrow;
  Cast().f32_to_f16(&x, &narrow.bits, 1);
  return narrow;
}
inline uint16_t Bf16OfFloat(float x) {
  uint16_t narrow;
  Cast().f32_to_bf16(&x, &narrow, 1);
  return narrow;
}
template <typename T>
uint32_t PairOfFloats(float low, float high) {
  if constexpr (std::is_same_v<T, Half>) {
    return uint32_t{HalfOfFloat(low).bits} | uint32_t{HalfOfFloat(high).bits} << 16;
  } else {
    return uint32_t{Bf16OfFloat(low)} | uint32_t{Bf16OfFloat(high)} << 16;
  }
}

// The products are exact in double; the device rounds their sum once or more, in an order that is
// not documented.
template <typename T = uint16_t>
void MultiplyTile(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  muster::testing::SourcePlace where = muster::testing::SourcePlace::current()) {
  struct Operands {
    uint32_t a[4];
    uint32_t b[2];
  };
  const auto lanes = Exchange(Operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, where);
  const auto number = [](uint32_t word, int half) {
    const uint32_t upper = half == 0 ? word << 16 : word & 0xffff0000u;
    if constexpr (std::is_same_v<T, Half>) {
      return static_cast<double>(FloatOfHalf({static_cast<uint16_t>(upper >> 16)}));
    } else {
      float value;
      std::memcpy(&value, &upper, sizeof(value));
      return static_cast<double>(value);
    }
  };
  for (int i = 0; i < 4; ++i) {
    const int row = Lane() / 4 + i / 2 * 8;
    const int column = Lane() % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const Operands& of_a = lanes[row % 8 * 4 + k % 8 / 2];
      const Operands& of_b = lanes[column * 4 + k % 8 / 2];
      sum += number(of_a.a[row / 8 + k / 8 * 2], k % 2) * number(of_b.b[k / 8], k % 2);
    }
    c[i] = static_cast<float>(sum);
  }
}

}  // namespace muster::kernels::simt
