// Causal self-attention of several heads.
//
//   S = Q K^T / sqrt(head_width), masked to keys at or before the query
//   P = softmax(S) by row,  O = P V
//
// Worked in blocks of kQueryBlock queries of one head at a time, each against the keys it may see,
// so a block of S stays in the cache and no sequence x sequence matrix is ever stored: backward
// recomputes P from the largest score and the sum of each row.
// Source: Dao et al., "FlashAttention", 2022, section 3.1 (recomputation); differs in that a block
// of queries sees all its keys at once, so no running rescaling is needed.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

inline constexpr int64_t kQueryBlock = 64;

struct AttentionShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t heads = 0;
  int64_t head_width = 0;
  int64_t first_query = 0;  // rows of `out` before it are not computed (forward only)
  bool of_cache = false;    // of a text that grows from call to call (forward only)
};

// Elements of scratch that either pass needs.
constexpr int64_t AttentionScratchElements(AttentionShape shape) {
  return 2 * kQueryBlock * shape.sequence;
}

// Shapes:  qkv, dqkv [batch, sequence, 3, heads, head_width] (Q, K, V side by side in a row);
//          out, dout [batch, sequence, heads, head_width]; row_max, row_scale [batch, heads,
//          sequence]; scratch [AttentionScratchElements].
// Bits:    products by Matmul; softmax rows in the lanes of a Pack, in T. dK and dV add the blocks
//          of queries from the last to the first.
// Cost:    2 + 5 products of sequence x keys x head_width per head, about half of them skipped by
//          the mask for sequences much longer than kQueryBlock.
// Threads: thread-safe, given a scratch each.
template <typename T>
struct AttentionKernels {
  struct Saved {
    T* row_max;    // largest score of the row
    T* row_scale;  // 1 / sum of exp(score - row_max)
  };
  struct Upstream {
    const T* out;
    const T* dout;
  };

  void (*forward)(AttentionShape shape, const T* qkv, T* out, Saved saved, T* scratch);
  // dqkv is overwritten.
  void (*backward)(AttentionShape shape, const T* qkv, Saved saved, Upstream upstream, T* dqkv,
                   T* scratch);
};

template <Isa kIsa, typename T>
AttentionKernels<T> MakeAttention();

template <typename T>
const AttentionKernels<T>& Attention() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeAttention<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
