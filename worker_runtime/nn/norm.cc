// Norms on the tape: of rows, and of the heads in a row.
#include "absl/strings/str_cat.h"
#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/fit.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/products.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

// The kernel writes the gradients of all weights; what is frozen gets a place that is dropped.
Tensor TargetOf(Tape& tape, Parameter* parameter) {
  if (parameter == nullptr) return {};
  if (!parameter->frozen()) return parameter->BeginGradient().gradient;
  Tensor dropped = tape.pool().Allocate(parameter->dtype(), parameter->shape());
  tape.operations(dropped.dtype()).clear(tape.queue(), dropped);
  return dropped;
}

// What a record keeps.
struct Recorded {
  void InputGradient(Tape& tape, const Tensor& dy) const {
    Backward(tape, dy, true, tape.replays_whole());
  }
  void WeightGradient(Tape& tape, const Tensor& dy) const {
    const bool is_made = tape.replays_whole() && slot != Activation::kNoGradient;
    if (!is_made) Backward(tape, dy, false, true);
  }

  // Computes the gradients that are asked for and learn, in one pass.
  void Backward(Tape& tape, const Tensor& dy, bool of_input, bool of_weights) const {
    of_input = of_input && slot != Activation::kNoGradient;
    of_weights = of_weights && (Learns(&gamma) || Learns(beta));
    if (!of_input && !of_weights) return;
    Tape::InputTarget input;
    if (of_input) input = tape.BeginGradient(slot, x.dtype(), x.shape());
    const bool accumulate =
        Learns(&gamma) ? gamma.has_gradient() : Learns(beta) && beta->has_gradient();
    MUSTER_CHECK(!Learns(&gamma) || !Learns(beta) || gamma.has_gradient() == beta->has_gradient());
    Tensor to_gamma, to_beta;
    if (of_weights) {
      to_gamma = TargetOf(tape, &gamma);
      to_beta = TargetOf(tape, beta);
    }
    tape.operations(x.dtype()).norm_backward(
        tape.queue(), {.x = x, .gamma = gamma.value(), .saved = saved, .shape = shape}, dy,
        {.addend = input.addend,
         .dx = input.out,
         .dgamma = to_gamma,
         .dbeta = to_beta,
         .accumulate = accumulate});
  }

  Parameter& gamma;
  Parameter* beta;
  kernels::NormShape shape;
  int slot;
  Tensor x;
  Tensor saved;
};

}  // namespace

Norm::Norm(const Scope& scope, int64_t width, NormKind kind, double epsilon)
    : weight_(scope.Declare(
          {.name = "weight", .shape = {width}, .initializer = Initializer::Constant(1)})),
      bias_(kind == NormKind::kLayer ? &scope.Declare({.name = "bias", .shape = {width}})
                                     : nullptr),
      epsilon_(epsilon) {}

Activation Norm::Forward(Tape& tape, const Activation& x) const {
  if (x.value.empty()) return {};
  if (!HasWidth(x.value.shape(), weight_.num_elements())) {
    return tape.Refuse(WidthDiffers(weight_.name(), x.value.shape(), weight_.num_elements()));
  }
  const bool is_layer = bias_ != nullptr;
  const kernels::RowShape rows = RowsOf(x.value.shape());
  const kernels::NormShape shape = {
      .kind = is_layer ? kernels::NormKind::kLayer : kernels::NormKind::kRms,
      .rows = rows.rows,
      .width = rows.width,
      .line = rows.width};
  const DType dtype = x.value.dtype();
  Tensor y = tape.pool().Allocate(dtype, x.value.shape());
  Tensor saved = tape.pool().Allocate(StatisticsType(dtype), {is_layer ? 2 : 1, rows.rows});
  const Tensor& gamma = tape.Use(weight_);
  const Tensor beta = is_layer ? tape.Use(*bias_) : Tensor();
  tape.operations(dtype).norm_forward(
      tape.queue(), {.x = x.value, .gamma = gamma, .saved = saved, .shape = shape}, beta, epsilon_,
      y);
  if (!Learns(&weight_) && !Learns(bias_) && !x.needs_gradient()) return {.value = y};
  const Recorded recorded = {weight_, bias_, shape, x.slot, x.value, saved};
  Parameter* const weights[] = {&weight_, bias_};
  return tape.Record(
      y, absl::MakeConstSpan(weights).first(is_layer ? 2 : 1),
      [recorded](Tape& tape, const Tensor& dy) { recorded.InputGradient(tape, dy); },
      [recorded](Tape& tape, const Tensor& dy) { recorded.WeightGradient(tape, dy); });
}

namespace {

// The heads of queries or of keys in rows of qkv, each a row of its own.
kernels::NormShape ShapeOf(const HeadNorms::Options& options, const Shape& qkv, bool of_keys) {
  const int64_t heads = of_keys ? options.kv_heads : options.heads;
  return {.kind = kernels::NormKind::kRms,
          .rows = RowsOf(qkv).rows * heads,
          .width = options.head_size,
          .per_line = heads,
          .line = RowsOf(qkv).width,
          .offset = of_keys ? options.heads * options.head_size : 0};
}

// What a record of both norms keeps.
struct RecordedHeads {
  // Values pass: their gradients are copied. Those of weights alone are made of dy.
  void Backward(Tape& tape, const Tensor& dy, const Tensor& dx, bool of_weights) const {
    const Operations& operations = tape.operations(qkv.dtype());
    const Tensor none;
    for (const bool of_keys : {false, true}) {
      Parameter& gamma = of_keys ? keys : queries;
      const bool learns = of_weights && !gamma.frozen();
      if (dx.empty() && !learns) continue;
      const auto to = learns ? gamma.BeginGradient() : Parameter::GradientTarget{};
      operations.norm_backward(tape.queue(),
                               {.x = qkv,
                                .gamma = gamma.value(),
                                .saved = of_keys ? saved_keys : saved_queries,
                                .shape = ShapeOf(options, qkv.shape(), of_keys)},
                               dy,
                               {.addend = none,
                                .dx = dx,
                                .dgamma = to.gradient,
                                .dbeta = none,
                                .accumulate = to.accumulate});
    }
  }

  HeadNorms::Options options;
  Parameter& queries;
  Parameter& keys;
  Tensor qkv;
  Tensor saved_queries;
  Tensor saved_keys;
};

}  // namespace

HeadNorms::HeadNorms(const Scope& scope, const Options& options)
    : options_(options),
      queries_((scope / "q_norm")
                   .Declare({.name = "weight",
                             .shape = {options.head_size},
                             .initializer = Initializer::Constant(1)})),
      keys_((scope / "k_norm")
                .Declare({.name = "weight",
                          .shape = {options.head_size},
                          .initializer = Initializer::Constant(1)})) {}

Activation HeadNorms::Forward(Tape& tape, const Activation& qkv) const {
  if (qkv.value.empty()) return {};
  const int64_t key_heads = options_.kv_heads == 0 ? options_.heads : options_.kv_heads;
  const int64_t width = (options_.heads + 2 * key_heads) * options_.head_size;
  const Shape& in = qkv.value.shape();
  if (!HasWidth(in, width)) return tape.Refuse(WidthDiffers(queries_.name(), in, width));
  const DType dtype = qkv.value.dtype();
  const Operations& operations = tape.operations(dtype);
  const auto saved_of = [&](bool of_keys) {
    return tape.pool().Allocate(StatisticsType(dtype), {1, ShapeOf(options_, in, of_keys).rows});
  };
  const Tensor y = tape.pool().Allocate(dtype, in);
  const RecordedHeads recorded = {options_,  queries_,        keys_,
                                  qkv.value, saved_of(false), saved_of(true)};
  operations.copy(tape.queue(), qkv.value, y);
  for (const bool of_keys : {false, true}) {
    operations.norm_forward(tape.queue(),
                            {.x = qkv.value,
                             .gamma = tape.Use(of_keys ? keys_ : queries_),
                             .saved = of_keys ? recorded.saved_keys : recorded.saved_queries,
                             .shape = ShapeOf(options_, in, of_keys)},
                            {}, options_.epsilon, y);
  }
  const auto input_gradient = [recorded, slot = qkv.slot](Tape& on, const Tensor& dy) {
    if (slot == Activation::kNoGradient) return;
    const Tensor dx = on.pool().Allocate(dy.dtype(), dy.shape());
    on.operations(dy.dtype()).copy(on.queue(), dy, dx);
    recorded.Backward(on, dy, dx, on.replays_whole());
    on.AddGradient(slot, dx);
  };
  const auto weight_gradient = [recorded, slot = qkv.slot](Tape& on, const Tensor& dy) {
    const bool is_made = on.replays_whole() && slot != Activation::kNoGradient;
    if (!is_made) recorded.Backward(on, dy, {}, true);
  };
  return tape.Record(y, {&queries_, &keys_}, input_gradient, weight_gradient);
}

}  // namespace muster
