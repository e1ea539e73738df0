// The table of a struct of kernels for the host: one home for which kernel stands where.
#pragma once

#include <cstring>

#include "proto/base/status_macros.h"
#include "worker_runtime/nn/narrow_operations.h"
#include "worker_runtime/nn/operations.h"

namespace muster {

// What is the same for every type.
struct BytesOfHost {
  static void Copy(Queue&, const Tensor& from, const Tensor& to) {
    MUSTER_CHECK(from.num_bytes() <= to.num_bytes());
    std::memcpy(to.raw_data(), from.raw_data(), from.num_bytes());
  }
  static void Clear(Queue&, const Tensor& x) { std::memset(x.raw_data(), 0, x.num_bytes()); }
};

template <typename Kernels>
constexpr Operations TableOf() {
  return {.copy = &Kernels::Copy,
          .cast = &CastElements,
          .clear = &Kernels::Clear,
          .fill = &Kernels::Fill,
          .add = &Kernels::Add,
          .scale = &Kernels::Scale,
          .multiply = &Kernels::Multiply,
          .bias_fill = &Kernels::BiasFill,
          .bias_gradient = &Kernels::BiasGradient,
          .gelu_forward = &Kernels::GeluForward,
          .gelu_backward = &Kernels::GeluBackward,
          .layer_norm_forward = &Kernels::LayerNormForward,
          .layer_norm_input = &Kernels::LayerNormInput,
          .layer_norm_weight = &Kernels::LayerNormWeight,
          .embedding_forward = &Kernels::EmbeddingForward,
          .embedding_gradient = &Kernels::EmbeddingGradient,
          .attention_forward = &Kernels::AttentionForward,
          .attention_backward = &Kernels::AttentionBackward,
          .squares = &Kernels::Squares,
          .adamw = &Kernels::AdamW,
          .sgd = &Kernels::Sgd,
          .cross_entropy = &Kernels::CrossEntropy};
}

}  // namespace muster
