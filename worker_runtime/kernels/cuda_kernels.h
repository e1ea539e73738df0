// The kernels of a CUDA device, each computing what its host twin computes (`<op>.h`,
// `<op>_host.cc`), in `<op>.cu`.
//
// Every function puts its kernels on a stream and returns. T is float, uint16_t (bf16 by its bits)
// or Half; sums run in float. Pointers are of the device's memory, arrays start on multiples of 16
// bytes, and scratch may hold anything. Nothing is added up by atomic operations: the same
// arguments give the same bits, run after run.
//
// Gradients of weights are of G: T, or float beside 16 bits.
//
// What a product of matrices is fused with comes from cuBLASLt; products are not here.
//
// Threads: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/kernels/adamw.h"
#include "worker_runtime/kernels/attention.h"
#include "worker_runtime/kernels/embedding.h"
#include "worker_runtime/kernels/half.h"
#include "worker_runtime/kernels/launch.h"
#include "worker_runtime/kernels/norm.h"
#include "worker_runtime/kernels/rotary.h"
#include "worker_runtime/kernels/rounding.h"
#include "worker_runtime/kernels/row_shape.h"
#include "worker_runtime/kernels/sgd.h"
#include "worker_runtime/kernels/sum_of_squares.h"
#include "worker_runtime/kernels/update_decision.h"

namespace muster::kernels::cuda {

// --- Flat arrays, [n]

// out = a + b; may be either.
template <typename T>
LaunchError Add(StreamHandle stream, const T* a, const T* b, T* out, int64_t n);
template <typename T>
LaunchError Fill(StreamHandle stream, float value, T* out, int64_t n);
// out = factor[0] * x; may be x.
template <typename T>
LaunchError Scale(StreamHandle stream, const T* factor, const T* x, T* out, int64_t n);
// Casts round to nearest, ties to even: the bits of cast.h.
LaunchError CastToBf16(StreamHandle stream, const float* x, uint16_t* y, int64_t n);
LaunchError CastToF16(StreamHandle stream, const float* x, Half* y, int64_t n);
LaunchError CastToFloat(StreamHandle stream, const uint16_t* x, float* y, int64_t n);
LaunchError CastToFloat(StreamHandle stream, const Half* x, float* y, int64_t n);

// --- Embedding

// `position_table` may be null.
template <typename T>
LaunchError EmbeddingForward(StreamHandle stream, EmbeddingShape shape, const int32_t* tokens,
                             const T* token_table, const T* position_table, T* y);
// dtoken[tokens[b, t]] += dy[b, t], dposition[t] += the sum over b; each number in one sum in
// float, in the order of (b, t), rounded once. Either may be null.
template <typename G>
struct EmbeddingGradients {
  G* dtoken;
  G* dposition;
};
template <typename T, typename G = T>
LaunchError EmbeddingBackward(StreamHandle stream, EmbeddingShape shape, const int32_t* tokens,
                              const T* dy, EmbeddingGradients<G> to);

// --- Rows

// Shapes as in norm.h. An RMS norm has no mean, beta or dbeta.
template <typename T>
struct NormAffine {
  const T* gamma;
  const T* beta;
  double epsilon;
};
struct NormSaved {
  float* mean;
  float* rstd;
};
// `y` may be x.
template <typename T>
LaunchError NormForward(StreamHandle stream, NormShape shape, const T* x, NormAffine<T> affine,
                        T* y, NormSaved saved);

// `x` is what was normalised; `addend` may be null, and may be dx.
template <typename T>
struct NormUpstream {
  const T* x;
  const T* dy;
  const T* addend;
};

// Sums over rows go in strips of so many rows, whose sums are then added.
inline constexpr int64_t kStripRows = 256;
constexpr int64_t StripsOf(int64_t rows, int64_t strip_rows) {
  return (rows + strip_rows - 1) / strip_rows;
}
// Floats of scratch for a sum over rows.
constexpr int64_t ColumnScratch(RowShape shape) {
  return StripsOf(shape.rows, kStripRows) * shape.width;
}

// Strips of a norm have fewer rows: a block has them whole.
constexpr int64_t NormStripRows(int64_t rows) {
  constexpr int64_t kStrips = 1024, kFewest = 16, kMultiple = 4;
  const int64_t some = (rows + kStrips - 1) / kStrips;
  return some <= kFewest ? kFewest : (some + kMultiple - 1) / kMultiple * kMultiple;
}
// The arrays of weights that a norm has.
template <NormKind kKind>
inline constexpr int kNormArrays = kKind == NormKind::kLayer ? 2 : 1;
constexpr int64_t NormScratch(const NormShape& shape) {
  using enum NormKind;
  const int64_t arrays = shape.kind == kRms ? kNormArrays<kRms> : kNormArrays<kLayer>;
  return arrays * StripsOf(shape.rows, NormStripRows(shape.rows)) * shape.width;
}
// dgamma, dbeta [+]= …; `dgamma` may be null: then neither is wanted.
template <typename G>
struct NormWeights {
  G* dgamma;
  G* dbeta;
  bool accumulate;
};
// One pass over x and dy for all that is wanted; `dx` may be null, and may be dy: of rows wider
// than 4096 with weights that takes two. What is computed has the same bits whether the rest is or
// not. scratch [NormScratch(shape)], for the weights.
template <typename T, typename G = T>
LaunchError NormBackward(StreamHandle stream, NormShape shape, NormUpstream<T> in, const T* gamma,
                         NormSaved saved, T* dx, NormWeights<G> to, float* scratch);

// y = bias in every row [+ residual]; either may be null.
template <typename T>
LaunchError BiasFill(StreamHandle stream, RowShape shape, const T* bias, const T* residual, T* y);
// dbias [+]= the sum of dy over rows; scratch [ColumnScratch(shape)].
template <typename T, typename G>
LaunchError BiasGradient(StreamHandle stream, RowShape shape, const T* dy, G* dbias,
                         bool accumulate, float* scratch);

// pre = x + bias, y = gelu(pre). `bias` may be null: then pre is x and is not written.
template <typename T>
struct BiasGelu {
  const T* x;
  const T* bias;
  T* pre;
};
template <typename T>
LaunchError BiasGeluForward(StreamHandle stream, RowShape shape, BiasGelu<T> in, T* y);
// dx = dy * gelu'(pre); may be dy.
template <typename T>
LaunchError GeluBackward(StreamHandle stream, const T* pre, const T* dy, T* dx, int64_t n);

// Shapes as in swiglu.h.
template <typename T>
LaunchError SwiGluForward(StreamHandle stream, RowShape shape, const T* gate_up, T* y);
// `dgate_up` may be gate_up.
template <typename T>
LaunchError SwiGluBackward(StreamHandle stream, RowShape shape, const T* gate_up, const T* dy,
                           T* dgate_up);

// Shapes as in rotary.h, and its bits in float.
template <typename T>
LaunchError Rotate(StreamHandle stream, RotaryShape shape, const RotaryFrequencies& frequencies,
                   T* x);

// --- Attention

struct AttentionSaved {
  float* row_max;
  float* row_scale;
};
// Shapes as in attention.h, heads of at most 128. Flash attention: blocks of 64 queries against up
// to 64 keys at a time, softmax rescaled as they come; for 16 bits products by tensor cores,
// probabilities rounded to T before the second one. `shared_bytes_max`: of a block on this GPU,
// which a kernel is chosen by (attention_tiles.h). Source: Dao, "FlashAttention-2", 2023, section 3
template <typename T>
LaunchError AttentionForward(StreamHandle stream, AttentionShape shape, const T* qkv, T* out,
                             AttentionSaved saved, size_t shared_bytes_max);
template <typename T>
struct AttentionUpstream {
  const T* out;
  const T* dout;
};
// One kernel for dK and dV, one for dQ: seven products in place of five, and no atomic additions.
// A block adds up what the heads of its group say, in float, from the first to the last: nothing is
// kept for each of them. scratch [batch * heads * sequence].
template <typename T>
LaunchError AttentionBackward(StreamHandle stream, AttentionShape shape, const T* qkv,
                              AttentionSaved saved, AttentionUpstream<T> upstream, T* dqkv,
                              float* scratch, size_t shared_bytes_max);

// --- Loss

// Rows of `stride` with `width` logits: what lies between is neither read nor counted, and its
// gradients are zeros.
struct LogitShape {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t stride = width;
};
// losses[row] as cross_entropy.h has it, 0 for an ignored target. With `gradient_scale` (of the
// device; null: none) the logits become gradient_scale[0] * (softmax - onehot).
template <typename T>
LaunchError CrossEntropyRows(StreamHandle stream, LogitShape shape, T* logits,
                             const int32_t* targets, const float* gradient_scale, double* losses);
// sum[0] = their sum by TreeSum (below), and value[0] the same in T; scratch [TreeScratch(n)].
template <typename T>
LaunchError SumLosses(StreamHandle stream, const double* losses, int64_t n, double* scratch,
                      double* sum, T* value);

// --- Sums

// partials [NumNormBlocks(n)]: the squares by block; for float the bits of sum_of_squares.h.
template <typename T>
LaunchError SquaresByBlock(StreamHandle stream, const T* x, int64_t n, double* partials);

// Leaves that one pass of TreeSum adds to one.
inline constexpr int64_t kTreeLeaves = 1024;
// Doubles of scratch: the sums of every pass but the last.
constexpr int64_t TreeScratch(int64_t n) {
  int64_t roots = 0;
  for (; n > kTreeLeaves; roots += n) n = (n + kTreeLeaves - 1) / kTreeLeaves;
  return roots;
}
// to[0] = the sum of `values` by the tree of muster/sum_tree.h, to the bit; scratch
// [TreeScratch(n)].
LaunchError TreeSum(StreamHandle stream, const double* values, int64_t n, double* scratch,
                    double* to);

// --- The update

using kernels::GradientTotals;
using kernels::RoundingDraws;
using kernels::UpdateDecision;
using kernels::UpdateRun;
using kernels::UpdateSettings;

// Replaces the last decision in `decision` by this one (update_decision.h).
LaunchError DecideUpdate(StreamHandle stream, const UpdateSettings& settings, GradientTotals totals,
                         UpdateDecision* decision);

// Arrays of one rank, [n].
struct AdamWArrays {
  const float* gradient;
  float* master;
  float* first_moment;
  float* second_moment;
  uint16_t* value;  // follows the masters by draws (rounding.h); null: the masters are all there is
};
// The arrays' runs, of the host's memory; n is the end of the last.
struct UpdateRuns {
  const UpdateRun* runs;
  size_t count;
};
// One pass over parameters of all groups, whose decisions follow each other: the bits of adamw.h in
// float. A launch for each hundred runs or so.
LaunchError AdamWUpdate(StreamHandle stream, UpdateRuns runs, const UpdateDecision* decisions,
                        AdamWArrays arrays, RoundingDraws draws);

// value [n] as it follows `master` [n] after the update that was decided last.
LaunchError RoundByDraws(StreamHandle stream, const UpdateDecision* decision, const float* master,
                         uint16_t* value, RoundingDraws draws, int64_t n);

// The same for sgd.h.
struct SgdArrays {
  const float* gradient;
  float* value;
  float* buffer;  // null without momentum
};
struct SgdMomentum {
  float momentum = 0;
  bool nesterov = false;
};
LaunchError SgdUpdate(StreamHandle stream, SgdMomentum with, UpdateRuns runs,
                      const UpdateDecision* decisions, SgdArrays arrays);

}  // namespace muster::kernels::cuda
