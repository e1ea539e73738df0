// Host twin of attention: one block of rows after the other, which stays in cache.
#include "worker_runtime/kernels/attention.h"

#include "worker_runtime/kernels/matmul.h"
#include "worker_runtime/kernels/softmax_row.h"

namespace muster::kernels {
namespace {

// One head of one sequence inside the interleaved arrays.
template <typename T>
struct Head {
  const T* q;
  const T* k;
  const T* v;
  int64_t stride;  // of q, k and v
  int64_t out_stride;
  int64_t width;
  T score_scale;
};

// Queries of one head, or one query of every head that shares its keys: those lie side by side.
struct QueryBlock {
  int64_t first;
  int64_t rows;
  int64_t heads = 1;
  int64_t keys() const { return first + rows; }
  int64_t lines() const { return rows * heads; }
  bool is_of_heads() const { return heads > 1; }
};

QueryBlock BlockAt(int64_t first, int64_t sequence) {
  const int64_t left = sequence - first;
  return {.first = first, .rows = left < kQueryBlock ? left : kQueryBlock};
}

// Where heads begin in the lines of a sequence: one of Q, and those of K and V that it shares.
struct HeadOffsets {
  int64_t q;
  int64_t k;
  int64_t v;
};

HeadOffsets OffsetsOf(AttentionShape shape, int64_t b, int64_t h) {
  const int64_t line = b * shape.sequence * shape.line_width();
  const int64_t key_head = shape.heads + h / shape.group();
  return {.q = line + h * shape.head_width,
          .k = line + key_head * shape.head_width,
          .v = line + (key_head + shape.key_heads()) * shape.head_width};
}

int64_t OutOffset(AttentionShape shape, int64_t b, int64_t h) {
  return b * shape.sequence * shape.out_width() + h * shape.head_width;
}

template <typename T>
Head<T> HeadAt(AttentionShape shape, const T* qkv, HeadOffsets at) {
  return {.q = qkv + at.q,
          .k = qkv + at.k,
          .v = qkv + at.v,
          .stride = shape.line_width(),
          .out_stride = shape.out_width(),
          .width = shape.head_width,
          .score_scale = shape.ScoreScale<T>()};
}

// scores [lines, keys]; the keys after a query's own are computed and then ignored.
template <typename T>
void Scores(const Head<T>& head, QueryBlock block, T* scores) {
  Matmul({.m = block.lines(), .n = block.keys(), .k = head.width}, head.score_scale,
         {.data = head.q + block.first * head.stride,
          .stride = block.is_of_heads() ? head.width : head.stride},
         {.data = head.k, .stride = head.stride, .transpose = Transpose::kYes},
         MatmulResult<T>{.data = scores, .stride = block.keys()});
}

template <typename T>
void Clear(T* from, T* to) {
  for (; from < to; ++from) *from = T{0};
}

// Hides the keys behind the `visible` ones of a row up to a whole number of packs, where the row
// has room for them, and returns how many there are then. Their weights come out as zeros, in the
// lanes that a tail would have filled with as much: the bits are those of the visible keys alone,
// and rows of ever new lengths cost no tails.
template <typename T>
int64_t HideUpToPack(T* scores, int64_t visible, int64_t keys) {
  constexpr int64_t kLanes = Pack<T>::kLanes;
  const int64_t padded = (visible + kLanes - 1) / kLanes * kLanes;
  if (padded > keys) return visible;
  for (int64_t i = visible; i < padded; ++i) scores[i] = kLowestScore<T>;
  return padded;
}

template <typename T>
void ScaleRow(T factor, T* x, int64_t n) {
  const auto f = Pack<T>::Broadcast(factor);
  ForEachPack<T>(n, [=](int64_t i, auto load, auto store) { store(f * load(x + i), x + i); });
}

template <typename T>
void ForwardBlock(AttentionShape shape, const Head<T>& head, QueryBlock block, T* out,
                  typename AttentionKernels<T>::Saved saved, T* scores) {
  const int64_t saved_stride = block.is_of_heads() ? shape.sequence : 1;
  const int64_t out_stride = block.is_of_heads() ? head.width : head.out_stride;
  saved.row_max += block.first;
  saved.row_scale += block.first;
  out += block.first * head.out_stride;
  Scores(head, block, scores);
  for (int64_t line = 0; line < block.lines(); ++line) {
    T* s = scores + line * block.keys();
    const int64_t visible = block.first + 1 + (block.is_of_heads() ? 0 : line);
    const int64_t length = HideUpToPack(s, visible, block.keys());
    const T max = RowMax(s, length);
    const T sum = ExpAndSum<true>(s, max, s, length);
    Clear(s + length, s + block.keys());
    saved.row_max[line * saved_stride] = max;
    saved.row_scale[line * saved_stride] = T{1} / sum;
  }
  Matmul({.m = block.lines(), .n = head.width, .k = block.keys()}, T{1},
         {.data = scores, .stride = block.keys()}, {.data = head.v, .stride = head.stride},
         MatmulResult<T>{.data = out, .stride = out_stride});
  for (int64_t line = 0; line < block.lines(); ++line) {
    ScaleRow(saved.row_scale[line * saved_stride], out + line * out_stride, head.width);
  }
}

template <typename T>
void Forward(AttentionShape shape, const T* qkv, T* out, typename AttentionKernels<T>::Saved saved,
             T* scratch) {
  // Heads of which scratch has the scores of one query.
  const bool together = shape.group() > 1 && shape.group() <= kQueryBlock;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const Head<T> head = HeadAt(shape, qkv, OffsetsOf(shape, b, h));
      T* head_out = out + OutOffset(shape, b, h);
      for (int64_t first = shape.first_query; first < shape.sequence; first += kQueryBlock) {
        QueryBlock block = BlockAt(first, shape.sequence);
        if (together && block.rows == 1) {
          if (h % shape.group() != 0) continue;  // the first of the group has done it
          block.heads = shape.group();
        }
        ForwardBlock(shape, head, block, head_out, saved, scratch);
      }
      saved.row_max += shape.sequence;
      saved.row_scale += shape.sequence;
    }
  }
}

template <typename T>
T Dot(const T* a, const T* b, int64_t n) {
  auto sum = Pack<T>::Zero();
  ForEachPack<T>(n, [&](int64_t i, auto load, auto) { sum = Fma(load(a + i), load(b + i), sum); });
  return Sum(sum);
}

// scores -> P, dp -> dS of the first `length` keys.
//   dS = P * (dP - rowsum(dO * O)), with respect to the scaled scores
template <typename T>
void SoftmaxBackwardRow(T max, T row_scale, T correction, T* scores, T* dp, int64_t length) {
  const auto shift = Pack<T>::Broadcast(max);
  const auto scale = Pack<T>::Broadcast(row_scale);
  const auto minus = Pack<T>::Broadcast(correction);
  ForEachPack<T>(length, [=](int64_t i, auto load, auto store) {
    const Pack<T> p = scale * Exp(load(scores + i) - shift);
    store(p, scores + i);
    store(p * (load(dp + i) - minus), dp + i);
  });
}

template <typename T>
struct HeadGradients {
  const T* out;
  const T* dout;
  T* dq;
  T* dk;
  T* dv;
};

template <typename T>
void BackwardBlock(const Head<T>& head, QueryBlock block, typename AttentionKernels<T>::Saved saved,
                   HeadGradients<T> to, T beta, T* scratch) {
  const int64_t keys = block.keys();
  T* scores = scratch;
  T* dp = scratch + block.rows * keys;
  const T* dout = to.dout + block.first * head.out_stride;
  const T* out = to.out + block.first * head.out_stride;
  Scores(head, block, scores);
  Matmul({.m = block.rows, .n = keys, .k = head.width}, T{1},
         {.data = dout, .stride = head.out_stride},
         {.data = head.v, .stride = head.stride, .transpose = Transpose::kYes},
         MatmulResult<T>{.data = dp, .stride = keys});
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t visible = block.first + row + 1;
    const int64_t at = row * head.out_stride;
    const int64_t length = HideUpToPack(scores + row * keys, visible, keys);
    SoftmaxBackwardRow(saved.row_max[block.first + row], saved.row_scale[block.first + row],
                       Dot(dout + at, out + at, head.width), scores + row * keys, dp + row * keys,
                       length);
    Clear(scores + row * keys + visible, scores + (row + 1) * keys);
    Clear(dp + row * keys + visible, dp + (row + 1) * keys);
  }
  const MatmulShape onto_keys = {.m = keys, .n = head.width, .k = block.rows};
  Matmul(onto_keys, T{1}, {.data = scores, .stride = keys, .transpose = Transpose::kYes},
         {.data = dout, .stride = head.out_stride},
         MatmulResult<T>{.data = to.dv, .stride = head.stride, .beta = beta});
  Matmul(onto_keys, head.score_scale, {.data = dp, .stride = keys, .transpose = Transpose::kYes},
         {.data = head.q + block.first * head.stride, .stride = head.stride},
         MatmulResult<T>{.data = to.dk, .stride = head.stride, .beta = beta});
  Matmul({.m = block.rows, .n = head.width, .k = keys}, head.score_scale,
         {.data = dp, .stride = keys}, {.data = head.k, .stride = head.stride},
         MatmulResult<T>{.data = to.dq + block.first * head.stride, .stride = head.stride});
}

template <typename T>
void Backward(AttentionShape shape, const T* qkv, typename AttentionKernels<T>::Saved saved,
              typename AttentionKernels<T>::Upstream upstream, T* dqkv, T* scratch) {
  const int64_t last_block = (shape.sequence - 1) / kQueryBlock * kQueryBlock;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const HeadOffsets at = OffsetsOf(shape, b, h);
      const Head<T> head = HeadAt(shape, qkv, at);
      const int64_t out_offset = OutOffset(shape, b, h);
      const HeadGradients<T> to = {.out = upstream.out + out_offset,
                                   .dout = upstream.dout + out_offset,
                                   .dq = dqkv + at.q,
                                   .dk = dqkv + at.k,
                                   .dv = dqkv + at.v};
      const bool begins_group = h % shape.group() == 0;
      // The last block sees every key, so the first head of a group writes all of dk and dv with it
      // and what follows adds to them.
      for (int64_t first = last_block; first >= 0; first -= kQueryBlock) {
        BackwardBlock(head, BlockAt(first, shape.sequence), saved, to,
                      begins_group && first == last_block ? T{0} : T{1}, scratch);
      }
      saved.row_max += shape.sequence;
      saved.row_scale += shape.sequence;
    }
  }
}

}  // namespace

template <Isa isa, typename T>
AttentionKernels<T> MakeAttention() {
  return {.forward = &Forward<T>, .backward = &Backward<T>};
}
template AttentionKernels<float> MakeAttention<kIsa, float>();
template AttentionKernels<double> MakeAttention<kIsa, double>();

}  // namespace muster::kernels
