// Matrix products with weights and biases on the tape.
#include <optional>
#include <utility>

#include "muster/layers.h"
#include "muster/recompute.h"
#include "worker_runtime/nn/fit.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/products.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

void AddLinearGradients(Tape& tape, Parameter& weight, Parameter* bias, const Tensor& dy,
                        const Tensor& x) {
  const auto target = [](Parameter* parameter) {
    return Learns(parameter) ? parameter->BeginGradient() : Parameter::GradientTarget{};
  };
  const Parameter::GradientTarget to_weight = target(&weight), to_bias = target(bias);
  const Operations& operations = tape.operations(dy.dtype());
  if (weight.frozen()) {
    return operations.bias_gradient(tape.queue(), dy, to_bias.gradient, to_bias.accumulate);
  }
  operations.linear_weight(tape.queue(), dy, x,
                           {.to = to_weight.gradient, .accumulate = to_weight.accumulate},
                           {.to = to_bias.gradient, .accumulate = to_bias.accumulate});
}

// What the gradient of a weight needs of the forward pass.
Tensor KeptFor(const Parameter& weight, const Tensor& x) { return weight.frozen() ? Tensor() : x; }

// A bias is cut where outputs are: others are added once, to the sum.
std::optional<ParameterCut> CutOf(const Linear::Options& options, bool of_weight) {
  if (options.cut == Linear::Cut::kOutputs) return ParameterCut{0, options.sections};
  if (options.cut == Linear::Cut::kInputs && of_weight) return ParameterCut{.axis = 1};
  return std::nullopt;
}

}  // namespace

Linear::Linear(const Scope& scope, Options options)
    : cut_(options.cut),
      weight_(scope.Declare({.name = "weight",
                             .shape = {options.outputs, options.inputs},
                             .initializer = Initializer::Normal(options.initial_std),
                             .weight_decay = true,
                             .cut = CutOf(options, /*of_weight=*/true)})),
      bias_(options.bias ? &scope.Declare({.name = "bias",
                                           .shape = {options.outputs},
                                           .cut = CutOf(options, /*of_weight=*/false)})
                         : nullptr) {}

bool Linear::AddsUp() const {
  return cut_ == Cut::kInputs && weight_.store().tensor_ranks().size > 1;
}

bool Linear::BringsRest() const { return !AddsUp() || weight_.store().tensor_ranks().is_first(); }

Activation Linear::Shared(Tape& tape, const Activation& x) const {
  ParameterStore& store = weight_.store();
  if (cut_ != Cut::kOutputs || store.tensor_ranks().size == 1 || !x.needs_gradient()) return x;
  const auto input_gradient = [&store, slot = x.slot](Tape& on, const Tensor& dy) {
    Tensor sum;
    if (dy.IsSoleOwner()) {
      sum = dy;
    } else {
      sum = on.pool().Allocate(dy.dtype(), dy.shape());
      on.operations(dy.dtype()).copy(on.queue(), dy, sum);
    }
    store.AddUp(sum);
    on.AddGradient(slot, sum);
  };
  return tape.Record(x.value, {}, input_gradient, NoGradientFunction());
}

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
  const Tensor bias = UseBias(tape);
  const Tensor& weight = tape.Use(weight_);
  const Tensor none;
  tape.operations(y.dtype()).linear_forward(
      tape.queue(), {.x = x, .weight = weight, .bias = BringsRest() ? bias : none},
      BringsRest() ? residual : none, y);
  if (AddsUp()) weight_.store().AddUp(y);
}

Tensor Linear::UseBias(Tape& tape) const { return bias_ == nullptr ? Tensor() : tape.Use(*bias_); }

template <typename InputGradient, typename WeightGradient>
Activation Linear::RecordWith(Tape& tape, const Tensor& y, const InputGradient& input_gradient,
                              const WeightGradient& weight_gradient) const {
  Parameter* const weights[] = {&weight_, bias_};
  const auto all = absl::MakeConstSpan(weights).first(bias_ == nullptr ? 1 : 2);
  if (weight_.frozen() && !Learns(bias_)) {
    return tape.Record(y, all, input_gradient, NoGradientFunction());
  }
  return tape.Record(y, all, input_gradient, weight_gradient);
}

Activation Linear::RecordProduct(Tape& tape, const Tensor& y, const Activation& residual,
                                 const Activation& x) const {
  const bool needs_inputs = residual.needs_gradient() || x.needs_gradient();
  if (weight_.frozen() && !Learns(bias_) && !needs_inputs) return {.value = y};
  const auto input_gradient = [&weight = weight_, residual = residual.slot, slot = x.slot,
                               shape = x.value.shape()](Tape& tape, const Tensor& dy) {
    tape.AddGradient(residual, dy);
    PassThroughProduct(tape, slot, shape, dy, weight.value());
  };
  const auto weight_gradient = [&weight = weight_, bias = bias_, x = KeptFor(weight_, x.value)](
                                   Tape& tape, const Tensor& dy) {
    AddLinearGradients(tape, weight, bias, dy, x);
  };
  return RecordWith(tape, y, input_gradient, weight_gradient);
}

Activation Linear::ForwardOnto(Tape& tape, const Activation& residual,
                               const Activation& input) const {
  const Activation x = Shared(tape, input);
  const Tensor y = MakeSum(tape, residual.value, x.value);
  if (y.empty()) return {};
  AddProduct(tape, residual.value, x.value, y);
  return RecordProduct(tape, y, residual, x);
}

Activated Linear::ForwardActivated(Tape& tape, const Activation& input, Nonlinearity kind) const {
  if (kind == Nonlinearity::kSwiGlu || AddsUp()) {
    const Activation pre = Forward(tape, input);
    if (pre.value.empty()) return {};
    return {.pre = pre, .value = Nonlinear(kind).Of(tape, pre.value), .kind = kind};
  }
  const Activation x = Shared(tape, input);
  const Tensor pre = MakeOutput(tape, x.value);
  if (pre.empty()) return {};
  Tensor gelu = tape.pool().Allocate(pre.dtype(), pre.shape());
  const Tensor bias = UseBias(tape);
  const Tensor& weight = tape.Use(weight_);
  tape.operations(pre.dtype())
      .linear_gelu(tape.queue(), {.x = x.value, .weight = weight, .bias = bias}, pre, gelu);
  return {.pre = RecordProduct(tape, pre, {}, x), .value = std::move(gelu), .kind = kind};
}

Activation Linear::ForwardOntoActivated(Tape& tape, const Activation& residual,
                                        const Activated& in) const {
  const Tensor y = MakeSum(tape, residual.value, in.value);
  if (y.empty()) return {};
  AddProduct(tape, residual.value, in.value, y);

  const auto input_gradient = [&weight = weight_, residual = residual.slot, slot = in.pre.slot,
                               kind = in.kind, pre = in.pre.value,
                               shape = in.value.shape()](Tape& tape, const Tensor& dy) {
    tape.AddGradient(residual, dy);
    if (slot == Activation::kNoGradient) return;
    const Operations& operations = tape.operations(dy.dtype());
    const Tensor dpre = tape.pool().Allocate(pre.dtype(), pre.shape());
    if (kind == Nonlinearity::kGelu) {
      operations.gelu_linear_input(tape.queue(), dy, weight.value(), pre, dpre);
    } else {
      const Tensor through = tape.pool().Allocate(dy.dtype(), shape);
      ProductWith(tape, dy, weight.value(), through, /*accumulate=*/false);
      operations.swiglu_backward(tape.queue(), pre, through, dpre);
    }
    tape.AddGradient(slot, dpre);
  };
  const bool again = !weight_.frozen() && tape.recompute().kind == Recompute::Kind::kSelective;
  const auto weight_gradient = [&weight = weight_, bias = bias_, kind = in.kind,
                                kept = again ? in.pre.value : KeptFor(weight_, in.value),
                                again](Tape& tape, const Tensor& dy) {
    AddLinearGradients(tape, weight, bias, dy, again ? Nonlinear(kind).Of(tape, kept) : kept);
  };
  return RecordWith(tape, y, input_gradient, weight_gradient);
}

Activation LmHead(Tape& tape, const Activation& x, Parameter& table) {
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
