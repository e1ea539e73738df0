// The table of a struct of kernels: one home for which kernel stands where.
#pragma once

#include <cstring>

#include "muster/sum_tree.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/linear_in_passes.h"
#include "worker_runtime/nn/narrow_operations.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/rounding.h"

namespace muster {

// Decisions, by group, in memory of the host, or of another device when its kernel runs.
inline kernels::UpdateDecision* DecisionIn(const Tensor& bytes) {
  MUSTER_CHECK(!bytes.empty() && bytes.num_bytes() % sizeof(kernels::UpdateDecision) == 0);
  return reinterpret_cast<kernels::UpdateDecision*>(bytes.raw_data());
}

// What is the same for every type on the host.
struct BytesOfHost : LinearInPasses {
  static constexpr decltype(Operations::head_loss) HeadLoss = nullptr;

  static void Copy(Queue&, const Tensor& from, const Tensor& to) {
    MUSTER_CHECK(from.num_bytes() <= to.num_bytes());
    std::memcpy(to.raw_data(), from.raw_data(), from.num_bytes());
  }
  static void Clear(Queue&, const Tensor& x) { std::memset(x.raw_data(), 0, x.num_bytes()); }
  static void Cast(Queue& queue, const Tensor& from, const Tensor& to) {
    CastElements(queue, from, to);
  }
  static void SumByTree(Queue&, const Tensor& values, const Tensor& to) {
    *to.data<double>() = TreeSum(values.span<double>());
  }
  static void DecideUpdate(Queue&, const kernels::UpdateSettings& settings,
                           Operations::Totals totals, const Tensor& decision) {
    kernels::DecideUpdate(
        settings,
        {.squares = totals.squares.data<double>(),
         .tokens = totals.tokens.data<double>(),
         .loss_scale = totals.loss_scale.data<double>(),
         .loss = totals.loss.data<double>(),
         .learning_rate =
             totals.learning_rate.empty() ? nullptr : totals.learning_rate.data<double>()},
        DecisionIn(decision));
  }
  static void RoundByDraws(Queue&, const Tensor& decision, const Tensor& masters,
                           kernels::RoundingDraws draws, const Tensor& to) {
    MUSTER_CHECK(to.dtype() == DType::kBf16 && to.num_elements() == masters.num_elements());
    muster::RoundByDraws(masters.span<float>(), draws, DecisionIn(decision)->updates,
                         static_cast<uint16_t*>(to.raw_data()));
  }
};

template <typename Kernels>
constexpr Operations TableOf() {
  return {.copy = &Kernels::Copy,
          .cast = &Kernels::Cast,
          .clear = &Kernels::Clear,
          .fill = &Kernels::Fill,
          .add = &Kernels::Add,
          .scale = &Kernels::Scale,
          .multiply = &Kernels::Multiply,
          .bias_fill = &Kernels::BiasFill,
          .bias_gradient = &Kernels::BiasGradient,
          .gelu_forward = &Kernels::GeluForward,
          .gelu_backward = &Kernels::GeluBackward,
          .linear_forward = &Kernels::LinearForward,
          .linear_gelu = &Kernels::LinearGelu,
          .gelu_linear_input = &Kernels::GeluLinearInput,
          .linear_weight = &Kernels::LinearWeight,
          .layer_norm_forward = &Kernels::LayerNormForward,
          .layer_norm_backward = &Kernels::LayerNormBackward,
          .embedding_forward = &Kernels::EmbeddingForward,
          .embedding_gradient = &Kernels::EmbeddingGradient,
          .attention_forward = &Kernels::AttentionForward,
          .attention_backward = &Kernels::AttentionBackward,
          .squares = &Kernels::Squares,
          .tree_sum = &Kernels::SumByTree,
          .decide_update = &Kernels::DecideUpdate,
          .adamw = &Kernels::AdamW,
          .sgd = &Kernels::Sgd,
          .round_by_draws = &Kernels::RoundByDraws,
          .cross_entropy = &Kernels::CrossEntropy,
          .head_loss = Kernels::HeadLoss};
}

}  // namespace muster
