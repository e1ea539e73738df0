// Matrix products with weights and biases on the tape.
#include "muster/layers.h"
#include "worker_runtime/nn/fit.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/products.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

void AddLinearGradients(Tape& tape, Parameter& weight, Parameter& bias, const Tensor& dy,
                        const Tensor& x) {
  AddWeightGradient(tape, weight, dy, x);
  if (bias.frozen()) return;
  const Parameter::GradientTarget to = bias.BeginGradient();
  tape.operations(dy.dtype()).bias_gradient(tape.queue(), dy, to.gradient, to.accumulate);
}

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

Activation Linear::ForwardOnto(Tape& tape, const Activation& residual, const Activation& x) const {
  const int64_t outputs = weight_.shape()[0];
  if (x.value.empty()) return {};
  if (!HasWidth(x.value.shape(), weight_.shape()[1])) {
    return tape.Refuse(WidthDiffers(weight_.name(), x.value.shape(), weight_.shape()[1]));
  }
  Tensor y = tape.pool().Allocate(x.value.dtype(), WithLast(x.value.shape(), outputs));
  if (!residual.value.empty() && residual.value.shape() != y.shape()) {
    return tape.Refuse(SumDiffers(weight_.name(), residual.value.shape(), y.shape()));
  }
  tape.operations(y.dtype()).bias_fill(tape.queue(), tape.Use(bias_), residual.value, y);
  ProductWithTransposed(tape, x.value, tape.Use(weight_), y, /*accumulate=*/true);

  const bool learns = !weight_.frozen() || !bias_.frozen();
  if (!learns && !residual.needs_gradient() && !x.needs_gradient()) return {.value = y};
  const auto input_gradient = [&weight = weight_, residual = residual.slot, slot = x.slot,
                               shape = x.value.shape()](Tape& tape, const Tensor& dy) {
    tape.AddGradient(residual, dy);
    PassThroughProduct(tape, slot, shape, dy, weight.value());
  };
  const auto weight_gradient = [&weight = weight_, &bias = bias_, x = x.value](Tape& tape,
                                                                               const Tensor& dy) {
    AddLinearGradients(tape, weight, bias, dy, x);
  };
  return tape.Record(y, {&weight_, &bias_}, input_gradient, weight_gradient);
}

Activation Linear::ForwardOntoGelu(Tape& tape, const Activation& residual,
                                   const Activation& x) const {
  const auto activated = [](Tape& tape, const Tensor& x) {
    Tensor y = tape.pool().Allocate(x.dtype(), x.shape());
    tape.operations(x.dtype()).gelu_forward(tape.queue(), x, y);
    return y;
  };
  if (x.value.empty()) return {};
  if (!HasWidth(x.value.shape(), weight_.shape()[1])) {
    return tape.Refuse(WidthDiffers(weight_.name(), x.value.shape(), weight_.shape()[1]));
  }
  Tensor y = tape.pool().Allocate(x.value.dtype(), WithLast(x.value.shape(), weight_.shape()[0]));
  if (!residual.value.empty() && residual.value.shape() != y.shape()) {
    return tape.Refuse(SumDiffers(weight_.name(), residual.value.shape(), y.shape()));
  }
  tape.operations(y.dtype()).bias_fill(tape.queue(), tape.Use(bias_), residual.value, y);
  ProductWithTransposed(tape, activated(tape, x.value), tape.Use(weight_), y, /*accumulate=*/true);

  const auto input_gradient = [&weight = weight_, residual = residual.slot, slot = x.slot,
                               x = x.value](Tape& tape, const Tensor& dy) {
    tape.AddGradient(residual, dy);
    if (slot == Activation::kNoGradient) return;
    const Tensor dx = tape.pool().Allocate(x.dtype(), x.shape());
    ProductWith(tape, dy, weight.value(), dx, /*accumulate=*/false);
    tape.operations(dx.dtype()).gelu_backward(tape.queue(), x, dx, dx);
    tape.AddGradient(slot, dx);
  };
  const auto weight_gradient = [&weight = weight_, &bias = bias_, x = x.value, activated](
                                   Tape& tape, const Tensor& dy) {
    AddLinearGradients(tape, weight, bias, dy, activated(tape, x));
  };
  return tape.Record(y, {&weight_, &bias_}, input_gradient, weight_gradient);
}

Activation TiedHead(Tape& tape, const Activation& x, Parameter& table) {
  if (x.value.empty()) return {};
  if (!HasWidth(x.value.shape(), table.shape()[1])) {
    return tape.Refuse(WidthDiffers(table.name(), x.value.shape(), table.shape()[1]));
  }
  Tensor y = tape.pool().Allocate(x.value.dtype(), WithLast(x.value.shape(), table.shape()[0]));
  ProductWithTransposed(tape, x.value, tape.Use(table), y, /*accumulate=*/false);
  if (table.frozen() && !x.needs_gradient()) return {.value = y};
  const auto input_gradient = [&table, slot = x.slot, shape = x.value.shape()](Tape& tape,
                                                                               const Tensor& dy) {
    PassThroughProduct(tape, slot, shape, dy, table.value());
  };
  const auto weight_gradient = [&table, x = x.value](Tape& tape, const Tensor& dy) {
    AddWeightGradient(tape, table, dy, x);
  };
  return tape.Record(y, {&table}, input_gradient, weight_gradient);
}

}  // namespace muster
