// The vector type that the host kernels are written in. Only `*_host.cc` includes it.
//
// A Pack is 64 bytes of floats or doubles on every machine, held in registers as wide as the
// instruction set of the including file offers. The lanes, and so the order of every sum, never
// depend on the machine; a tail is loaded into a padded pack and goes through the very same code as
// the body. That is how a row alone has the bits of the same row inside a batch.
//
// Everything is in an unnamed namespace on purpose: the including file is compiled several times
// with different flags, and no function of a wider set may be merged with one of a narrower set.
// For the same reason these files use no inline function of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {
namespace {  // NOLINT(google-build-namespaces): see the file comment.

constexpr Isa kIsa = Isa::MUSTER_KERNEL_ISA;
constexpr int64_t kPackBytes = 64;
constexpr int64_t kNativeBytes = kIsa == Isa::kAvx512 ? 64 : kIsa == Isa::kAvx2 ? 32 : 16;
constexpr int kNatives = kPackBytes / kNativeBytes;

template <typename T>
struct Native;
template <>
struct Native<float> {
  typedef float Vector __attribute__((vector_size(kNativeBytes)));
  typedef int32_t Bits __attribute__((vector_size(kNativeBytes)));
};
template <>
struct Native<double> {
  typedef double Vector __attribute__((vector_size(kNativeBytes)));
  typedef int64_t Bits __attribute__((vector_size(kNativeBytes)));
};

template <typename T>
struct Pack {
  using Vector = typename Native<T>::Vector;
  using Bits = typename Native<T>::Bits;
  static constexpr int64_t kLanes = kPackBytes / static_cast<int64_t>(sizeof(T));
  static constexpr int kNativeLanes = kNativeBytes / sizeof(T);

  Vector part[kNatives];

  [[gnu::always_inline]] static Pack Broadcast(T value) {
    Pack out;
    for (int p = 0; p < kNatives; ++p) out.part[p] = Vector{} + value;
    return out;
  }
  static Pack Zero() { return Broadcast(T{0}); }
  [[gnu::always_inline]] static Pack Load(const T* from) {
    Pack out;
    for (int p = 0; p < kNatives; ++p) {
      __builtin_memcpy(&out.part[p], from + p * kNativeLanes, sizeof(Vector));
    }
    return out;
  }
  // Lanes from `count` on hold `padding`.
  static Pack LoadTail(const T* from, int64_t count, T padding = T{0}) {
    alignas(kPackBytes) T lanes[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? from[i] : padding;
    return Load(lanes);
  }
  [[gnu::always_inline]] void Store(T* to) const {
    for (int p = 0; p < kNatives; ++p) {
      __builtin_memcpy(to + p * kNativeLanes, &part[p], sizeof(Vector));
    }
  }
  void StoreTail(T* to, int64_t count) const {
    alignas(kPackBytes) T lanes[kLanes];
    Store(lanes);
    for (int64_t i = 0; i < count; ++i) to[i] = lanes[i];
  }
};

template <typename T, typename Op>
[[gnu::always_inline]] inline Pack<T> Map(const Pack<T>& a, Op op) {
  Pack<T> out;
  for (int p = 0; p < kNatives; ++p) out.part[p] = op(a.part[p]);
  return out;
}
template <typename T, typename Op>
[[gnu::always_inline]] inline Pack<T> Map(const Pack<T>& a, const Pack<T>& b, Op op) {
  Pack<T> out;
  for (int p = 0; p < kNatives; ++p) out.part[p] = op(a.part[p], b.part[p]);
  return out;
}

template <typename T>
[[gnu::always_inline]] inline Pack<T> operator+(const Pack<T>& a, const Pack<T>& b) {
  return Map(a, b, [](auto x, auto y) { return x + y; });
}
template <typename T>
[[gnu::always_inline]] inline Pack<T> operator-(const Pack<T>& a, const Pack<T>& b) {
  return Map(a, b, [](auto x, auto y) { return x - y; });
}
template <typename T>
[[gnu::always_inline]] inline Pack<T> operator*(const Pack<T>& a, const Pack<T>& b) {
  return Map(a, b, [](auto x, auto y) { return x * y; });
}
template <typename T>
[[gnu::always_inline]] inline Pack<T> operator/(const Pack<T>& a, const Pack<T>& b) {
  return Map(a, b, [](auto x, auto y) { return x / y; });
}
template <typename T>
[[gnu::always_inline]] inline Pack<T> Max(const Pack<T>& a, const Pack<T>& b) {
  return Map(a, b, [](auto x, auto y) { return x > y ? x : y; });
}
template <typename T>
[[gnu::always_inline]] inline Pack<T> Min(const Pack<T>& a, const Pack<T>& b) {
  return Map(a, b, [](auto x, auto y) { return x < y ? x : y; });
}

inline float ScalarFma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double ScalarFma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float ScalarSqrt(float a) { return __builtin_sqrtf(a); }
inline double ScalarSqrt(double a) { return __builtin_sqrt(a); }

// a * b + c, rounded once on every machine (one instruction where the set has it).
template <typename T>
[[gnu::always_inline]] inline Pack<T> Fma(const Pack<T>& a, const Pack<T>& b, const Pack<T>& c) {
  Pack<T> out;
  for (int p = 0; p < kNatives; ++p) {
    for (int i = 0; i < Pack<T>::kNativeLanes; ++i) {
      out.part[p][i] = ScalarFma(a.part[p][i], b.part[p][i], c.part[p][i]);
    }
  }
  return out;
}

template <typename T>
[[gnu::always_inline]] inline Pack<T> Sqrt(const Pack<T>& a) {
  Pack<T> out;
  for (int p = 0; p < kNatives; ++p) {
    for (int i = 0; i < Pack<T>::kNativeLanes; ++i) out.part[p][i] = ScalarSqrt(a.part[p][i]);
  }
  return out;
}

// Combines the lanes in a fixed tree: lane i with lane i + width/2, and so on.
template <typename T, typename Op>
[[gnu::always_inline]] inline T Reduce(const Pack<T>& a, Op op) {
  alignas(kPackBytes) T lanes[Pack<T>::kLanes];
  a.Store(lanes);
  for (int64_t width = Pack<T>::kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] = op(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}
template <typename T>
[[gnu::always_inline]] inline T Sum(const Pack<T>& a) {
  return Reduce(a, [](T x, T y) { return x + y; });
}
template <typename T>
[[gnu::always_inline]] inline T MaxLane(const Pack<T>& a) {
  return Reduce(a, [](T x, T y) { return x > y ? x : y; });
}

// Calls body(offset, load, store) for each pack of [0, n); `load(pointer)` and `store(pack,
// pointer)` read and write the lanes that exist, so that a tail runs the body's code.
template <typename T, typename Body>
[[gnu::always_inline]] inline void ForEachPack(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + Pack<T>::kLanes <= n; i += Pack<T>::kLanes) {
    body(
        i, [](const T* from) { return Pack<T>::Load(from); },
        [](const Pack<T>& value, T* to) { value.Store(to); });
  }
  if (i < n) {
    const int64_t count = n - i;
    body(
        i, [count](const T* from) { return Pack<T>::LoadTail(from, count); },
        [count](const Pack<T>& value, T* to) { value.StoreTail(to, count); });
  }
}

}  // namespace
}  // namespace muster::kernels
