// The kernels of one device for one dtype. What a layer computes goes through here, so a layer
// knows no device; kernels/ says what each computes.
//
// Every function puts its kernel on the queue and returns; its tensors live until it has run, or
// their memory is used again by what comes behind it on the queue.
#pragma once

#include <cstdint>
#include <tuple>

#include "absl/types/span.h"
#include "muster/arithmetic.h"
#include "muster/device.h"
#include "muster/tensor.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/adamw.h"
#include "worker_runtime/kernels/attention.h"
#include "worker_runtime/kernels/cross_entropy.h"
#include "worker_runtime/kernels/embedding.h"
#include "worker_runtime/kernels/norm.h"
#include "worker_runtime/kernels/rotary.h"
#include "worker_runtime/kernels/rounding.h"
#include "worker_runtime/kernels/sgd.h"
#include "worker_runtime/kernels/update_decision.h"

namespace muster {

// An empty tensor stands for an argument that is left out, where the kernel has one. Each operation
// has a row in kernel_table.h. A struct of arguments with tensors lists all its members in parts(),
// in their order.
struct Operations {
  // `to` may be longer.
  void (*copy)(Queue&, const Tensor& from, const Tensor& to);
  // Element by element to another type: f32 to 16 bits and back, or a copy.
  void (*cast)(Queue&, const Tensor& from, const Tensor& to);
  void (*clear)(Queue&, const Tensor& x);
  void (*fill)(Queue&, double value, const Tensor& x);
  void (*add)(Queue&, const Tensor& a, const Tensor& b, const Tensor& out);
  // out = factor[0] * x
  void (*scale)(Queue&, const Tensor& factor, const Tensor& x, const Tensor& out);
  void (*multiply)(Queue&, Product product, const Tensor& a, const Tensor& b, const Tensor& c);

  void (*bias_fill)(Queue&, const Tensor& bias, const Tensor& residual, const Tensor& y);
  void (*bias_gradient)(Queue&, const Tensor& dy, const Tensor& dbias, bool accumulate);
  void (*gelu_forward)(Queue&, const Tensor& x, const Tensor& y);
  void (*gelu_backward)(Queue&, const Tensor& x, const Tensor& dy, const Tensor& dx);
  // y [rows, width] of gate_up [rows, 2 width]; dgate_up may be gate_up.
  void (*swiglu_forward)(Queue&, const Tensor& gate_up, const Tensor& y);
  void (*swiglu_backward)(Queue&, const Tensor& gate_up, const Tensor& dy, const Tensor& dgate_up);

  // A product and what stands around it in layers, in one pass where the device has it in one
  // (linear_in_passes.h has them in several). Rows x [.., inputs], weight [outputs, inputs], bias
  // [outputs], which may be left out.
  struct Linear {
    const Tensor& x;
    const Tensor& weight;
    const Tensor& bias;
  };
  // y = x weight^T + bias [+ residual]
  void (*linear_forward)(Queue&, Linear in, const Tensor& residual, const Tensor& y);
  // pre = x weight^T + bias, y = gelu(pre)
  void (*linear_gelu)(Queue&, Linear in, const Tensor& pre, const Tensor& y);
  // Backward of y = gelu(pre) weight^T + ...: dpre = (dy weight) * gelu'(pre).
  void (*gelu_linear_input)(Queue&, const Tensor& dy, const Tensor& weight, const Tensor& pre,
                            const Tensor& dpre);
  // What a gradient of a weight is written to, or added to; `to` may be left out.
  struct GradientSum {
    const Tensor& to;
    bool accumulate;
  };
  // dweight [+]= dy^T x, dbias [+]= the rows of dy.
  void (*linear_weight)(Queue&, const Tensor& dy, const Tensor& x, GradientSum dweight,
                        GradientSum dbias);

  // `saved` [2, rows]: mean and 1 / deviation; of an RMS norm [1, rows]: 1 / root of the mean
  // square.
  struct Norm {
    const Tensor& x;
    const Tensor& gamma;
    const Tensor& saved;
    kernels::NormShape shape;
    auto parts() const { return std::tie(x, gamma, saved, shape); }
  };
  // An RMS norm has no beta: it is left out. `y` may be x.
  void (*norm_forward)(Queue&, Norm in, const Tensor& beta, double epsilon, const Tensor& y);
  // What is wanted of a backward pass: dx, with `addend` or without, or the gradients of all
  // weights that the norm has, or all. What is computed has the same bits whether the rest is or
  // not. `dx` may be dy, or the addend.
  struct NormGradients {
    const Tensor& addend;
    const Tensor& dx;
    const Tensor& dgamma;
    const Tensor& dbeta;
    bool accumulate;  // into those of weights
    auto parts() const { return std::tie(addend, dx, dgamma, dbeta, accumulate); }
  };
  void (*norm_backward)(Queue&, Norm in, const Tensor& dy, NormGradients to);

  // `tokens` and targets (below) lie in the memory of the device. `positions` may be left out, and
  // so may either gradient.
  void (*embedding_forward)(Queue&, kernels::EmbeddingShape shape, const int32_t* tokens,
                            const Tensor& table, const Tensor& positions, const Tensor& y);
  void (*embedding_gradient)(Queue&, kernels::EmbeddingShape shape, const int32_t* tokens,
                             const Tensor& dy, const Tensor& dtable, const Tensor& dpositions);

  // x [batch, sequence, line], in place: its heads of queries and keys are turned by their
  // positions, or back (kernels/rotary.h).
  void (*rotary)(Queue&, kernels::RotaryShape shape, const kernels::RotaryFrequencies& frequencies,
                 const Tensor& x);

  // `saved` [2, batch * heads * sequence]: largest score and 1 / sum of each row.
  void (*attention_forward)(Queue&, kernels::AttentionShape shape, const Tensor& qkv,
                            const Tensor& out, const Tensor& saved, const Tensor& scratch);
  struct AttentionGradient {
    const Tensor& qkv;
    const Tensor& saved;
    const Tensor& out;
    const Tensor& dout;
    auto parts() const { return std::tie(qkv, saved, out, dout); }
  };
  void (*attention_backward)(Queue&, kernels::AttentionShape shape, AttentionGradient in,
                             const Tensor& dqkv, const Tensor& scratch);

  // partials[b] = the squares of block b of x, partials [blocks of x] of f64
  // (kernels/sum_of_squares.h).
  void (*squares)(Queue&, const Tensor& x, const Tensor& partials);
  // to[0] = the sum of `values` by the tree of muster/sum_tree.h; both of f64.
  void (*tree_sum)(Queue&, const Tensor& values, const Tensor& to);

  // Sums of one update. `decision`: the bytes of a kernels::UpdateDecision. All other tensors are
  // one number of f64.
  struct Totals {
    const Tensor& squares;
    const Tensor& tokens;
    const Tensor& loss_scale;
    const Tensor& loss;
    const Tensor& learning_rate;  // empty: 1
    auto parts() const { return std::tie(squares, tokens, loss_scale, loss, learning_rate); }
  };
  void (*decide_update)(Queue&, const kernels::UpdateSettings& settings, Totals totals,
                        const Tensor& decision);
  // How parameters are updated that lie side by side in flat arrays, and belong to groups. The
  // learning rate, the scale of gradients and the number of the update are the decisions', which
  // were made with the same steps; nothing is changed if they were to skip it.
  struct Updates {
    absl::Span<const kernels::UpdateRun> runs;   // of the arrays, which the last one ends
    absl::Span<const kernels::AdamWStep> steps;  // by group
    const Tensor& decisions;                     // by group, one behind the other
    auto parts() const { return std::tie(runs, steps, decisions); }
  };
  struct AdamWArrays {
    const Tensor& gradient;
    const Tensor& value;
    const Tensor& first_moment;
    const Tensor& second_moment;
    const Tensor& rounded;  // of bf16, follows `value` as round_by_draws has it; may be left out
    kernels::RoundingDraws draws;
    auto parts() const {
      return std::tie(gradient, value, first_moment, second_moment, rounded, draws);
    }
  };
  void (*adamw)(Queue&, Updates updates, AdamWArrays arrays);
  // `step` has the momentum alone: the weight decay is the group's.
  void (*sgd)(Queue&, kernels::SgdStep step, Updates updates, const Tensor& gradient,
              const Tensor& value, const Tensor& buffer);
  // `to` of bf16, as it follows `masters` of f32 after the last update that was taken
  // (kernels/rounding.h).
  void (*round_by_draws)(Queue&, const Tensor& decision, const Tensor& masters,
                         kernels::RoundingDraws draws, const Tensor& to);

  // `value` [1] receives the sum of the losses, and so does `sum` [1] of f64. The result is the
  // host's alone: on meta no loss is known and every row counts, on other devices it says nothing.
  kernels::CrossEntropySum (*cross_entropy)(Queue&, const Tensor& logits, const int32_t* targets,
                                            const Tensor& dlogits, const Tensor& value,
                                            const Tensor& sum);

  // The same of logits x table^T, of which a device that has this never holds all; null: it has it
  // not. dx (of x) and dtable (of the table, of f32, with kernels::PaddedVocabulary rows) are
  // overwritten with the gradients of the sum, multiplied by `gradient_scale` [1] of f32 (empty: 1)
  // before they are rounded; either may be left out, and so may `value` and `sum` together.
  struct HeadLoss {
    const Tensor& x;
    const Tensor& table;
    const int32_t* targets;
    const Tensor& gradient_scale;
  };
  void (*head_loss)(Queue&, HeadLoss in, const Tensor& dx, const Tensor& dtable,
                    const Tensor& value, const Tensor& sum);
};

// Decisions, by group, in memory of the host, or of another device when its kernel runs.
inline kernels::UpdateDecision* DecisionIn(const Tensor& bytes) {
  MUSTER_CHECK(!bytes.empty() && bytes.num_bytes() % sizeof(kernels::UpdateDecision) == 0);
  return reinterpret_cast<kernels::UpdateDecision*>(bytes.raw_data());
}

// Type of what is kept of whole rows (means, largest scores) beside activations of type `dtype`.
constexpr DType StatisticsType(DType dtype) {
  return SizeOf(dtype) < SizeOf(DType::kF32) ? DType::kF32 : dtype;
}

}  // namespace muster
