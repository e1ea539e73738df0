// Causal attention on the tape, and over a cache of keys and values.
#include "worker_runtime/kernels/attention.h"

#include "absl/strings/str_cat.h"
#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/operations.h"

namespace muster {
namespace {

Tensor Scratch(Tape& tape, DType dtype, kernels::AttentionShape shape) {
  return tape.pool().Allocate(dtype, {kernels::AttentionScratchElements(shape)});
}

void InputGradient(Tape& tape, kernels::AttentionShape shape, int slot, const Tensor& qkv,
                   const Tensor& saved, const Tensor& out, const Tensor& dy) {
  if (slot == Activation::kNoGradient) return;
  Tensor dqkv = tape.pool().Allocate(qkv.dtype(), qkv.shape());
  const Tensor scratch = Scratch(tape, qkv.dtype(), shape);
  tape.operations(qkv.dtype())
      .attention_backward(tape.queue(), shape, {.qkv = qkv, .saved = saved, .out = out, .dout = dy},
                          dqkv, scratch);
  tape.AddGradient(slot, dqkv);
}

}  // namespace

Activation CausalAttention::Forward(Tape& tape, const Activation& qkv) const {
  if (qkv.value.empty()) return {};
  const Shape& in = qkv.value.shape();
  if (in.rank() != 3 || in[2] % (3 * heads_) != 0) {
    return tape.Refuse(absl::StrCat("attention of ", heads_, " heads: the input is ", in.ToString(),
                                    ", and must be [batch, sequence, 3 * width] with a "
                                    "width that the heads divide"));
  }
  const int64_t width = in[2] / 3;
  const kernels::AttentionShape shape = {
      .batch = in[0], .sequence = in[1], .heads = heads_, .head_width = width / heads_};
  const DType dtype = qkv.value.dtype();
  Tensor out = tape.pool().Allocate(dtype, {in[0], in[1], width});
  Tensor saved = tape.pool().Allocate(StatisticsType(dtype), {2, in[0] * heads_ * in[1]});
  {
    const Tensor scratch = Scratch(tape, dtype, shape);
    tape.operations(dtype).attention_forward(tape.queue(), shape, qkv.value, out, saved, scratch);
  }
  const auto input_gradient = [shape, slot = qkv.slot, qkv = qkv.value, saved, out](
                                  Tape& tape, const Tensor& dy) {
    InputGradient(tape, shape, slot, qkv, saved, out, dy);
  };
  return tape.Record(out, {}, input_gradient, NoGradientFunction());
}

Tensor CausalAttention::ForwardCached(Tape& tape, const Tensor& qkv, KeyValueCache& cache,
                                      int64_t context) const {
  const int64_t rows = qkv.shape()[1];
  const int64_t width = qkv.shape()[2] / 3;
  const int64_t first = cache.length_;
  MUSTER_CHECK(qkv.shape()[0] == 1 && first + rows <= context);
  if (cache.rows_.empty()) cache.rows_ = tape.pool().Allocate(qkv.dtype(), {context, 3 * width});
  const Operations& operations = tape.operations(qkv.dtype());
  operations.copy(tape.queue(), qkv, cache.rows_.Slice(first * 3 * width, {rows, 3 * width}));
  cache.length_ += rows;
  const kernels::AttentionShape shape = {.batch = 1,
                                         .sequence = cache.length_,
                                         .heads = heads_,
                                         .head_width = width / heads_,
                                         .first_query = first,
                                         .of_cache = true};
  // Sized by the context, so that a growing text asks for the same blocks again.
  const Tensor out = tape.pool().Allocate(qkv.dtype(), {context, width});
  const Tensor saved = tape.pool().Allocate(StatisticsType(qkv.dtype()), {2, heads_ * context});
  const Tensor scratch =
      Scratch(tape, qkv.dtype(), {.batch = 1, .sequence = context, .heads = heads_});
  operations.attention_forward(tape.queue(), shape, cache.rows_, out, saved, scratch);
  return out.Slice(first * width, {1, rows, width});
}

}  // namespace muster
