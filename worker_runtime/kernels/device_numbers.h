// Numbers as kernels of the device read, add up and write them: stored as float, as bf16 (held as
// its 16 bits, uint16_t) or as f16 (Half), computed in float. Only `.cu` files include it.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "worker_runtime/kernels/simt.h"

namespace muster::kernels::cuda {

// A number below all that kernels compare it with: not minus infinity, whose difference from itself
// is not a number.
inline constexpr float kLowest = -3e38f;

__device__ inline uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
__device__ inline float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(uint16_t bits) {
  return FloatOf(static_cast<uint32_t>(bits) << 16);
}

__device__ inline float ToFloat(Half x) { return simt::FloatOfHalf(x); }

// Rounds to nearest, ties to even: the bits of cast.h, but of what is not a number.
template <typename T>
__device__ T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline uint16_t FromFloat<uint16_t>(float x) {
  return simt::Bf16OfFloat(x);
}
template <>
__device__ inline Half FromFloat<Half>(float x) {
  return simt::HalfOfFloat(x);
}

// Numbers in 16 bytes.
template <typename T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

// Read and written 16 bytes at a time, where it has as many.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Group {
  T number[kCount];
};

// `at` is aligned to kCount numbers, or to 16 bytes.
template <int kCount, typename T>
__device__ void Load(const T* at, float (&to)[kCount]) {
  const auto group = *reinterpret_cast<const Group<T, kCount>*>(at);
  for (int i = 0; i < kCount; ++i) to[i] = ToFloat(group.number[i]);
}
template <int kCount, typename T>
__device__ void Store(const float (&from)[kCount], T* at) {
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
    Group<uint32_t, kCount / 2> pairs;
    for (int i = 0; i < kCount; i += 2) {
      pairs.number[i / 2] = simt::PairOfFloats<T>(from[i], from[i + 1]);
    }
    *reinterpret_cast<Group<uint32_t, kCount / 2>*>(at) = pairs;
  } else {
    Group<T, kCount> group;
    for (int i = 0; i < kCount; ++i) group.number[i] = FromFloat<T>(from[i]);
    *reinterpret_cast<Group<T, kCount>*>(at) = group;
  }
}

// The rest of an array of n numbers from `first` on, where that may be fewer; others are zeros.
template <int kCount, typename T>
__device__ void LoadUpTo(const T* x, int64_t first, int64_t n, float (&to)[kCount]) {
  if (first + kCount <= n) return Load(x + first, to);
  for (int i = 0; i < kCount; ++i) to[i] = first + i < n ? ToFloat(x[first + i]) : 0.0f;
}
template <int kCount, typename T>
__device__ void StoreUpTo(const float (&from)[kCount], T* x, int64_t first, int64_t n) {
  if (first + kCount <= n) return Store(from, x + first);
  for (int i = 0; i < kCount && first + i < n; ++i) x[first + i] = FromFloat<T>(from[i]);
}

// The sum over all lanes, in a tree; every lane gets the same bits.
template <typename T>
__device__ T WarpSum(T x) {
  for (int mask = simt::kWarpSize / 2; mask > 0; mask /= 2) x += simt::ShuffleXor(x, mask);
  return x;
}

// Threads of a block that works on one row, or on a piece of a flat array.
inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / simt::kWarpSize;

constexpr int64_t BlocksFor(int64_t n, int64_t per_block) {
  return (n + per_block - 1) / per_block;
}

// The index among all threads of the grid's first dimension.
__device__ inline int64_t GlobalThread() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// Calls `run` with kVector<T> as a constant if rows of `width` begin on its borders, else with 1.
template <typename T, typename Run>
LaunchError ForWidth(int64_t width, Run run) {
  if (width % kVector<T> == 0) return run(std::integral_constant<int, kVector<T>>());
  return run(std::integral_constant<int, 1>());
}

}  // namespace muster::kernels::cuda
