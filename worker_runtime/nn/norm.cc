// Norms on the tape: of rows, and of the heads in a row.
#include <array>
#include <memory>

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

// Where the gradients of both weights go: of queries, of keys; of what is frozen, nowhere.
using HeadTargets = std::array<Parameter::GradientTarget, 2>;

// What a record of both norms keeps.
struct RecordedHeads {
  // Values pass: their gradients are copied. Those of weights alone are made of dy.
  void Backward(Tape& tape, const Tensor& dy, const Tensor& dx, const HeadTargets& to) const {
    const Operations& operations = tape.operations(qkv.dtype());
    const Tensor none;
    for (const bool of_keys : {false, true}) {
      if (dx.empty() && to[of_keys].gradient.empty()) continue;
      const Parameter& gamma = of_keys ? keys : queries;
      operations.norm_backward(tape.queue(),
                               {.x = qkv,
                                .gamma = gamma.value(),
                                .saved = of_keys ? saved_keys : saved_queries,
                                .shape = ShapeOf(options, qkv.shape(), of_keys)},
                               dy,
                               {.addend = none,
                                .dx = dx,
                                .dgamma = to[of_keys].gradient,
                                .dbeta = none,
                                .accumulate = to[of_keys].accumulate});
    }
  }

  HeadTargets BeginGradients() const {
    HeadTargets to;
    for (const bool of_keys : {false, true}) {
      Parameter& gamma = of_keys ? keys : queries;
      if (!gamma.frozen()) to[of_keys] = gamma.BeginGradient();
    }
    return to;
  }

  // Gradients of both weights by themselves, [2, head_size].
  HeadTargets In(const Tensor& both) const {
    HeadTargets to;
    for (const bool of_keys : {false, true}) {
      if ((of_keys ? keys : queries).frozen()) continue;
      to[of_keys].gradient = both.Slice(of_keys ? options.head_size : 0, {options.head_size});
    }
    return to;
  }

  // Adds the same to the gradients of the weights.
  void AddFrom(Tape& tape, const Tensor& both) const {
    const HeadTargets from = In(both), to = BeginGradients();
    const Operations& operations = tape.operations(both.dtype());
    for (const bool of_keys : {false, true}) {
      const Tensor& gradient = to[of_keys].gradient;
      if (gradient.empty()) continue;
      if (to[of_keys].accumulate) {
        operations.add(tape.queue(), gradient, from[of_keys].gradient, gradient);
      } else {
        operations.copy(tape.queue(), from[of_keys].gradient, gradient);
      }
    }
  }

  // Each tensor rank has some of the heads that share the weights.
  bool AddsUp() const {
    return queries.store().tensor_ranks().size > 1 && !(queries.frozen() && keys.frozen());
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
  // Sums of the weights' gradients, for the half of a backward pass that writes them.
  const auto sums = recorded.AddsUp() ? std::make_shared<Tensor>() : nullptr;
  const auto input_gradient = [recorded, sums, slot = qkv.slot](Tape& on, const Tensor& dy) {
    Tensor dx;
    if (slot != Activation::kNoGradient) {
      dx = on.pool().Allocate(dy.dtype(), dy.shape());
      on.operations(dy.dtype()).copy(on.queue(), dy, dx);
    }
    if (sums != nullptr) {
      *sums = on.pool().Allocate(StatisticsType(dy.dtype()), {2, recorded.options.head_size});
      on.operations(sums->dtype()).clear(on.queue(), *sums);
      recorded.Backward(on, dy, dx, recorded.In(*sums));
      recorded.queries.store().AddUp(*sums);
    } else if (!dx.empty()) {
      recorded.Backward(on, dy, dx, on.replays_whole() ? recorded.BeginGradients() : HeadTargets());
    }
    if (!dx.empty()) on.AddGradient(slot, dx);
  };
  const auto weight_gradient = [recorded, sums, slot = qkv.slot](Tape& on, const Tensor& dy) {
    if (sums != nullptr) return recorded.AddFrom(on, *sums);
    const bool is_made = on.replays_whole() && slot != Activation::kNoGradient;
    if (!is_made) recorded.Backward(on, dy, {}, recorded.BeginGradients());
  };
  return tape.Record(y, {&queries_, &keys_}, input_gradient, weight_gradient);
}

}  // namespace muster
