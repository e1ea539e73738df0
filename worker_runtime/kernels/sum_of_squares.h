// Squares summed over fixed blocks (worker_runtime/README.md "Bits").
//
// A flat gradient is cut into blocks of kNormBlock elements counted from its first element. Each
// block gives one partial; TreeSum (muster/sum_tree.h) adds partials in an order that depends on
// their number alone. So ranks whose shards are whole blocks may compute their partials apart, and
// the norm has the same bits however the blocks were spread.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

inline constexpr int64_t kNormBlock = 1024;

constexpr int64_t NumNormBlocks(int64_t n) { return (n + kNormBlock - 1) / kNormBlock; }

// Bits:    inside a block: squares and lane sums in T (at most 64 additions each), then the lanes
//          in a fixed tree in double.
// Threads: thread-safe.
template <typename T>
struct SumOfSquaresKernels {
  // partials[b] = sum of x[i]^2 over block b.  x [n], partials [NumNormBlocks(n)]
  void (*blocks)(const T* x, int64_t n, double* partials);
};

template <Isa kIsa, typename T>
SumOfSquaresKernels<T> MakeSumOfSquares();

template <typename T>
const SumOfSquaresKernels<T>& SumOfSquares() {
  static const auto table =
      ForIsa(BestIsa(), [](auto isa) { return MakeSumOfSquares<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
