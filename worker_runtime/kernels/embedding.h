// Token and position embedding.
//
//   y[b, t] = token_table[tokens[b, t]] [+ position_table[t]]
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

struct EmbeddingShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t width = 0;
  int64_t first_position = 0;  // of t = 0; not 0 when text is continued token by token
};

// Shapes:  tokens [batch, sequence] in [0, vocabulary), which the caller has checked;
//          y, dy [batch, sequence, width]; token_table, dtoken [vocabulary, width];
//          position_table, dposition [context, width].
// Bits:    forward element-wise. A gradient row adds its contributions in the order of (b, t), in
//          T.
// Threads: thread-safe.
template <typename T>
struct EmbeddingKernels {
  // `position_table` may be null.
  void (*forward)(EmbeddingShape shape, const int32_t* tokens, const T* token_table,
                  const T* position_table, T* y);
  // dtoken[tokens[b, t]] += dy[b, t]
  void (*token_gradient)(EmbeddingShape shape, const int32_t* tokens, const T* dy, T* dtoken);
  // dposition[t] += sum over b of dy[b, t]
  void (*position_gradient)(EmbeddingShape shape, const T* dy, T* dposition);
};

template <Isa kIsa, typename T>
EmbeddingKernels<T> MakeEmbedding();

template <typename T>
const EmbeddingKernels<T>& Embedding() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeEmbedding<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels
