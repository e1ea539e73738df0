// Matrix products with weights and biases on the tape.
#include <utility>

#include "muster/layers.h"
#include "muster/recompute.h"
#include "worker_runtime/nn/fit.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/products.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

void AddLinearGradients(Tape& tape, Parameter& weight, Parameter& bias, const Tensor& dy,
                        const Tensor& x) {
  const auto target = [](Parameter& parameter) {
    return parameter.frozen() ? Parameter::GradientTarget{} : parameter.BeginGradient();
  };
  const Parameter::GradientTarget to_weight = target(weight), to_bias = target(bias);
  const Operations& operations = tape.operations(dy.dtype());
  if (weight.frozen()) {
    return operations.bias_gradient(tape.queue(), dy, to_bias.gradient, to_bias.accumulate);
  }
  operations.linear_weight(tape.queue(), dy, x,
                           {.to = to_weight.gradient, .accumulate = to_weight.accumulate},
                           {.to = to_bias.gradient, .accumulate = to_bias.accumulate});
}

bool Learns(const Parameter& weight, const Parameter& bias) {
  return !weight.frozen() || !bias.frozen();
}

// What the gradient of a weight needs of the forward pass.
Tensor KeptFor(const Parameter& weight, const Tensor& x) { return weight.frozen() ? Tensor() : x; }

}  // namespace

Linear::Linear(const Scope& scope, Options options)
    : weight_(scope.Declare({.name = "weight",
                             .shape = {options.outputs, options.inputs},
                             .initializer = Initializer::Normal(options.initial_std),
                             .weight_decay = true})),
      bias_(scope.Declare({.name = "bias", .shape = {options.outputs}})) {}

Activation Linear::Forward(Tape& tape, const Activation& x) const {
  return ForwardOnto(tape, {}, x);
}

// A new tensor for x W^T; empty if `x` does not fit.
Tensor Linear::MakeOutput(Tape& tape, const Tensor& x) const {
  if (x.empty()) return {};
  if (!HasWidth(x.shape(), weight_.shape()[1])) {
    tape.Refuse(WidthDiffers(weight_.name(), x.shape(), weight_.shape()[1]));
    return {};
  }
  return tape.pool().Allocate(x.dtype(), WithLast(x.shape(), weight_.shape()[0]));
}

// The same for `residual` + x W^T; `residual` may be empty.
Tensor Linear::MakeSum(Tape& tape, const Tensor& residual, const Tensor& x) const {
  const Tensor y = MakeOutput(tape, x);
  if (y.empty() || residual.empty() || residual.shape() == y.shape()) return y;
  tape.Refuse(SumDiffers(weight_.name(), residual.shape(), y.shape()));
  return {};
}

void Linear::AddProduct(Tape& tape, const Tensor& residual, const Tensor& x,
                        const Tensor& y) const {
  const Tensor& bias = tape.Use(bias_);
  const Tensor& weight = tape.Use(weight_);
  tape.operations(y.dtype()).linear_forward(tape.queue(), {.x = x, .weight = weight, .bias = bias},
                                            residual, y);
}

Activation Linear::RecordProduct(Tape& tape, const Tensor& y, const Activation& residual,
                                 const Activation& x) const {
  const bool needs_inputs = residual.needs_gradient() || x.needs_gradient();
  if (!Learns(weight_, bias_) && !needs_inputs) return {.value = y};
  const auto input_gradient = [&weight = weight_, residual = residual.slot, slot = x.slot,
                               shape = x.value.shape()](Tape& tape, const Tensor& dy) {
    tape.AddGradient(residual, dy);
    PassThroughProduct(tape, slot, shape, dy, weight.value());
  };
  if (!Learns(weight_, bias_))
    return tape.Record(y, {&weight_, &bias_}, input_gradient, NoGradientFunction());
  const auto weight_gradient = [&weight = weight_, &bias = bias_, x = KeptFor(weight_, x.value)](
                                   Tape& tape, const Tensor& dy) {
    AddLinearGradients(tape, weight, bias, dy, x);
  };
  return tape.Record(y, {&weight_, &bias_}, input_gradient, weight_gradient);
}

Activation Linear::ForwardOnto(Tape& tape, const Activation& residual, const Activation& x) const {
  const Tensor y = MakeSum(tape, residual.value, x.value);
  if (y.empty()) return {};
  AddProduct(tape, residual.value, x.value, y);
  return RecordProduct(tape, y, residual, x);
}

Activated Linear::ForwardGelu(Tape& tape, const Activation& x) const {
  const Tensor pre = MakeOutput(tape, x.value);
  if (pre.empty()) return {};
  Tensor gelu = tape.pool().Allocate(pre.dtype(), pre.shape());
  const Tensor& bias = tape.Use(bias_);
  const Tensor& weight = tape.Use(weight_);
  tape.operations(pre.dtype())
      .linear_gelu(tape.queue(), {.x = x.value, .weight = weight, .bias = bias}, pre, gelu);
  return {.pre = RecordProduct(tape, pre, {}, x), .gelu = std::move(gelu)};
}

Activation Linear::ForwardOntoGelu(Tape& tape, const Activation& residual,
                                   const Activated& in) const {
  const Tensor y = MakeSum(tape, residual.value, in.gelu);
  if (y.empty()) return {};
  AddProduct(tape, residual.value, in.gelu, y);

  const auto input_gradient = [&weight = weight_, residual = residual.slot, slot = in.pre.slot,
                               pre = in.pre.value](Tape& tape, const Tensor& dy) {
    tape.AddGradient(residual, dy);
    if (slot == Activation::kNoGradient) return;
    const Tensor dpre = tape.pool().Allocate(pre.dtype(), pre.shape());
    tape.operations(dy.dtype()).gelu_linear_input(tape.queue(), dy, weight.value(), pre, dpre);
    tape.AddGradient(slot, dpre);
  };
  if (!Learns(weight_, bias_))
    return tape.Record(y, {&weight_, &bias_}, input_gradient, NoGradientFunction());
  const bool again = !weight_.frozen() && tape.recompute().kind == Recompute::Kind::kSelective;
  const auto weight_gradient = [&weight = weight_, &bias = bias_,
                                kept = again ? in.pre.value : KeptFor(weight_, in.gelu),
                                again](Tape& tape, const Tensor& dy) {
    Tensor gelu = kept;
    if (again) {
      gelu = tape.pool().Allocate(kept.dtype(), kept.shape());
      tape.operations(kept.dtype()).gelu_forward(tape.queue(), kept, gelu);
    }
    AddLinearGradients(tape, weight, bias, dy, gelu);
  };
  return tape.Record(y, {&weight_, &bias_}, input_gradient, weight_gradient);
}

Activation TiedHead(Tape& tape, const Activation& x, Parameter& table) {
  if (x.value.empty()) return {};
  if (!HasWidth(x.value.shape(), table.shape()[1])) {
    return tape.Refuse(WidthDiffers(table.name(), x.value.shape(), table.shape()[1]));
  }
  Tensor y = tape.pool().Allocate(x.value.dtype(), WithLast(x.value.shape(), table.shape()[0]));
  ProductWithTransposed(tape, x.value, tape.Use(table), y);
  if (table.frozen() && !x.needs_gradient()) return {.value = y};
  const auto input_gradient = [&table, slot = x.slot, shape = x.value.shape()](Tape& tape,
                                                                               const Tensor& dy) {
    PassThroughProduct(tape, slot, shape, dy, table.value());
  };
  const auto weight_gradient = [&table, x = KeptFor(table, x.value)](Tape& tape, const Tensor& dy) {
    AddWeightGradient(tape, table, dy, x);
  };
  return tape.Record(y, {&table}, input_gradient, weight_gradient);
}

}  // namespace muster
