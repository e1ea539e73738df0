// Causal self-attention of several heads. Heads of Q may share those of K and V in equal groups of
// neighbours.
//
//   S = score_scale * Q K^T, masked to keys at or before the query
//   P = softmax(S) by row,  O = P V
//
// Worked in blocks of kQueryBlock queries of one head at a time, each against the keys it may see,
// so a block of S stays in the cache and no sequence x sequence matrix is ever stored: backward
// recomputes P from the largest score and the sum of each row. A single query, as of a text that
// grows, is worked for all heads of its group at once: products took 0.26 to 0.46 of the time that
// they take one by one (4 to 8 heads of 64 and 128, 256 to 4096 keys, AVX-512, oneDNN 2.6).
// Source: Dao et al., "FlashAttention", 2022, section 3.1 (recomputation); differs in that a block
// of queries sees all its keys at once, so no running rescaling is needed. Ainslie et al., "GQA",
// 2023 (grouped queries)
#pragma once

#include <cmath>
#include <compare>
#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

inline constexpr int64_t kQueryBlock = 64;

struct AttentionShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t heads = 0;     // of Q
  int64_t kv_heads = 0;  // of K and V, which divides `heads`; 0: as many
  int64_t head_width = 0;
  int64_t first_query = 0;  // rows of `out` before it are not computed (forward only)
  bool of_cache = false;    // of a text that grows from call to call (forward only)
  double score_scale = 0;   // 0: 1 / sqrt(head_width)

  constexpr int64_t key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  // Heads of Q for each of K: head h sees the keys of head h / group().
  constexpr int64_t group() const { return heads / key_heads(); }
  // Numbers of a token in qkv and in out.
  constexpr int64_t line_width() const { return (heads + 2 * key_heads()) * head_width; }
  constexpr int64_t out_width() const { return heads * head_width; }
  // Rows of S.
  constexpr int64_t query_rows() const { return batch * heads * sequence; }
  // The scale of scores, as computed in T.
  template <typename T>
  T ScoreScale() const {
    return score_scale == 0 ? T{1} / std::sqrt(static_cast<T>(head_width))
                            : static_cast<T>(score_scale);
  }
  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;
};

// Elements of scratch that either pass needs.
constexpr int64_t AttentionScratchElements(AttentionShape shape) {
  return 2 * kQueryBlock * shape.sequence;
}

// Shapes:  qkv, dqkv [batch, sequence, heads + 2 kv_heads, head_width] (all heads of Q, then of K,
//          then of V); out, dout [batch, sequence, heads, head_width]; row_max, row_scale [batch,
//          heads, sequence]; scratch [AttentionScratchElements].
// Bits:    products by Matmul; softmax rows in the lanes of a Pack, in T. dK and dV add the heads
//          of their group from the first to the last, and of each the blocks of queries from the
//          last to the first.
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
