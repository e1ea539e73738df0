// Causal attention on the tape, and over a cache of keys and values.
#include "worker_runtime/kernels/attention.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/operations.h"

namespace muster {
namespace {

Tensor Scratch(Tape& tape, DType dtype, kernels::AttentionShape shape) {
  return tape.pool().Allocate(dtype, {kernels::AttentionScratchElements(shape)});
}

int64_t KeyHeads(const CausalAttention::Options& options) {
  return options.kv_heads == 0 ? options.heads : options.kv_heads;
}
// Heads side by side in a row of qkv.
int64_t HeadsOfRow(const CausalAttention::Options& options) {
  return options.heads + 2 * KeyHeads(options);
}

kernels::AttentionShape ShapeOf(const CausalAttention::Options& options, const Shape& qkv) {
  return {.batch = qkv[0],
          .sequence = qkv[1],
          .heads = options.heads,
          .kv_heads = KeyHeads(options),
          .head_width = qkv[2] / HeadsOfRow(options),
          .score_scale = options.score_scale};
}

// Turns queries and keys in place; back, for gradients.
struct Rotation {
  Rotation(const std::vector<double>& radians, kernels::AttentionShape shape)
      : shape({.batch = shape.batch,
               .sequence = shape.sequence,
               .heads = shape.heads + shape.key_heads(),
               .head_width = shape.head_width,
               .line = shape.line_width()}),
        is_none(radians.empty()) {
    std::copy(radians.begin(), radians.end(), frequencies.of_pair.begin());
  }

  void Turn(Tape& tape, const Tensor& qkv, bool back = false) const {
    if (is_none) return;
    kernels::RotaryShape how = shape;
    how.inverse = back;
    tape.operations(qkv.dtype()).rotary(tape.queue(), how, frequencies, qkv);
  }

  kernels::RotaryShape shape;
  kernels::RotaryFrequencies frequencies = {};
  bool is_none;
};

}  // namespace

Activation CausalAttention::Forward(Tape& tape, const Activation& qkv) const {
  if (qkv.value.empty()) return {};
  const Shape& in = qkv.value.shape();
  const int64_t heads = HeadsOfRow(options_);
  if (in.rank() != 3 || in[2] % heads != 0) {
    return tape.Refuse(absl::StrCat("attention of ", options_.heads, " heads with ",
                                    KeyHeads(options_), " of keys: the input is ", in.ToString(),
                                    ", and must be [batch, sequence, ", heads, " * head size]"));
  }
  const kernels::AttentionShape shape = ShapeOf(options_, in);
  const auto turned = 2 * static_cast<int64_t>(options_.rotary.size());
  if (turned != 0 && turned != shape.head_width) {
    return tape.Refuse(absl::StrCat("attention of ", options_.heads, " heads of ", shape.head_width,
                                    ": rotary positions are for heads of ", turned));
  }
  const DType dtype = qkv.value.dtype();
  const Rotation rotation(options_.rotary, shape);
  rotation.Turn(tape, qkv.value);
  Tensor out = tape.pool().Allocate(dtype, {in[0], in[1], shape.heads * shape.head_width});
  Tensor saved = tape.pool().Allocate(StatisticsType(dtype), {2, in[0] * shape.heads * in[1]});
  {
    const Tensor scratch = Scratch(tape, dtype, shape);
    tape.operations(dtype).attention_forward(tape.queue(), shape, qkv.value, out, saved, scratch);
  }
  const auto input_gradient = [rotation, shape, slot = qkv.slot, qkv = qkv.value, saved, out](
                                  Tape& on, const Tensor& dy) {
    if (slot == Activation::kNoGradient) return;
    Tensor dqkv = on.pool().Allocate(qkv.dtype(), qkv.shape());
    {
      const Tensor scratch = Scratch(on, qkv.dtype(), shape);
      on.operations(qkv.dtype())
          .attention_backward(on.queue(), shape,
                              {.qkv = qkv, .saved = saved, .out = out, .dout = dy}, dqkv, scratch);
    }
    rotation.Turn(on, dqkv, /*back=*/true);
    on.AddGradient(slot, dqkv);
  };
  return tape.Record(out, {}, input_gradient, NoGradientFunction());
}

Tensor CausalAttention::ForwardCached(Tape& tape, const Tensor& qkv, KeyValueCache& cache,
                                      int64_t context) const {
  const int64_t rows = qkv.shape()[1];
  const int64_t line = qkv.shape()[2];
  const int64_t first = cache.length_;
  MUSTER_CHECK(qkv.shape()[0] == 1 && first + rows <= context);
  if (cache.rows_.empty()) cache.rows_ = tape.pool().Allocate(qkv.dtype(), {context, line});
  const Operations& operations = tape.operations(qkv.dtype());
  Rotation rotation(options_.rotary, ShapeOf(options_, qkv.shape()));
  rotation.shape.first_position = first;
  rotation.Turn(tape, qkv);
  operations.copy(tape.queue(), qkv, cache.rows_.Slice(first * line, {rows, line}));
  cache.length_ += rows;
  kernels::AttentionShape shape = ShapeOf(options_, qkv.shape());
  shape.sequence = cache.length_;
  shape.first_query = first;
  shape.of_cache = true;
  // Sized by the context, so that a growing text asks for the same blocks again.
  const int64_t width = shape.heads * shape.head_width;
  const Tensor out = tape.pool().Allocate(qkv.dtype(), {context, width});
  const Tensor saved =
      tape.pool().Allocate(StatisticsType(qkv.dtype()), {2, shape.heads * context});
  kernels::AttentionShape longest = shape;
  longest.sequence = context;
  const Tensor scratch = Scratch(tape, qkv.dtype(), longest);
  operations.attention_forward(tape.queue(), shape, cache.rows_, out, saved, scratch);
  return out.Slice(first * width, {1, rows, width});
}

}  // namespace muster
