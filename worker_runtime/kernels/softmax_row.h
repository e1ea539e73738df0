// Pieces of a softmax over one row, shared by attention and cross-entropy. Only `*_host.cc`
// includes it (see pack.h for the unnamed namespace).
#pragma once

#include "worker_runtime/kernels/vector_exp.h"

namespace muster::kernels {
namespace {  // NOLINT(google-build-namespaces): see pack.h.

// The lowest score: not minus infinity, whose difference from itself is not a number.
template <typename T>
constexpr T kLowestScore = sizeof(T) == 4 ? static_cast<T>(-3e38f) : static_cast<T>(-1e308);

template <typename T>
inline T RowMax(const T* x, int64_t n) {
  auto max = Pack<T>::Broadcast(kLowestScore<T>);
  int64_t i = 0;
  for (; i + Pack<T>::kLanes <= n; i += Pack<T>::kLanes) max = Max(max, Pack<T>::Load(x + i));
  if (i < n) max = Max(max, Pack<T>::LoadTail(x + i, n - i, kLowestScore<T>));
  return MaxLane(max);
}

// The sum of exp(x - max); with kStore also out = exp(x - max), where `out` may be x.
template <bool kStore, typename T>
inline T ExpAndSum(const T* x, T max, T* out, int64_t n) {
  const auto shift = Pack<T>::Broadcast(max);
  auto sum = Pack<T>::Zero();
  int64_t i = 0;
  for (; i + Pack<T>::kLanes <= n; i += Pack<T>::kLanes) {
    const Pack<T> e = Exp(Pack<T>::Load(x + i) - shift);
    if constexpr (kStore) e.Store(out + i);
    sum = sum + e;
  }
  if (i < n) {
    const Pack<T> e = Exp(Pack<T>::LoadTail(x + i, n - i, kLowestScore<T>) - shift);
    if constexpr (kStore) e.StoreTail(out + i, n - i);
    sum = sum + e;
  }
  return Sum(sum);
}

}  // namespace
}  // namespace muster::kernels
