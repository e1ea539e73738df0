// Causal attention on the tape, and over a cache of keys and values.
#include "worker_runtime/kernels/attention.h"

#include <cstring>

#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/float_dispatch.h"

namespace muster {
namespace {

template <typename T>
typename kernels::AttentionKernels<T>::Saved SavedOf(const Tensor& saved) {
  return {.row_max = saved.data<T>(), .row_scale = saved.data<T>() + saved.shape()[1]};
}

Tensor Scratch(Tape& tape, DType dtype, kernels::AttentionShape shape) {
  return tape.pool().Allocate(dtype, {kernels::AttentionScratchElements(shape)});
}

void InputGradient(Tape& tape, kernels::AttentionShape shape, int slot, const Tensor& qkv,
                   const Tensor& saved, const Tensor& out, const Tensor& dy) {
  if (slot == Activation::kNoGradient) return;
  Tensor dqkv = tape.pool().Allocate(qkv.dtype(), qkv.shape());
  const Tensor scratch = Scratch(tape, qkv.dtype(), shape);
  WithFloat(qkv.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::Attention<T>().backward(shape, qkv.data<T>(), SavedOf<T>(saved),
                                     {.out = out.data<T>(), .dout = dy.data<T>()}, dqkv.data<T>(),
                                     scratch.data<T>());
  });
  tape.AddGradient(slot, dqkv);
}

}  // namespace

Activation CausalAttention::Forward(Tape& tape, const Activation& qkv) const {
  const Shape& in = qkv.value.shape();
  MUSTER_CHECK(in.rank() == 3 && in[2] % (3 * heads_) == 0);
  const int64_t width = in[2] / 3;
  const kernels::AttentionShape shape = {
      .batch = in[0], .sequence = in[1], .heads = heads_, .head_width = width / heads_};
  const DType dtype = qkv.value.dtype();
  Tensor out = tape.pool().Allocate(dtype, {in[0], in[1], width});
  Tensor saved = tape.pool().Allocate(dtype, {2, in[0] * heads_ * in[1]});
  {
    const Tensor scratch = Scratch(tape, dtype, shape);
    WithFloat(dtype, [&](auto zero) {
      using T = decltype(zero);
      kernels::Attention<T>().forward(shape, qkv.value.data<T>(), out.data<T>(), SavedOf<T>(saved),
                                      scratch.data<T>());
    });
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
  std::memcpy(cache.rows_.Slice(first * 3 * width, {rows, 3 * width}).raw_data(), qkv.raw_data(),
              qkv.num_bytes());
  cache.length_ += rows;
  const kernels::AttentionShape shape = {.batch = 1,
                                         .sequence = cache.length_,
                                         .heads = heads_,
                                         .head_width = width / heads_,
                                         .first_query = first};
  // Sized by the context, so that a growing text asks for the same blocks again.
  const Tensor out = tape.pool().Allocate(qkv.dtype(), {context, width});
  const Tensor saved = tape.pool().Allocate(qkv.dtype(), {2, heads_ * context});
  const Tensor scratch =
      Scratch(tape, qkv.dtype(), {.batch = 1, .sequence = context, .heads = heads_});
  WithFloat(qkv.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::Attention<T>().forward(shape, cache.rows_.data<T>(), out.data<T>(), SavedOf<T>(saved),
                                    scratch.data<T>());
  });
  return out.Slice(first * width, {1, rows, width});
}

}  // namespace muster
