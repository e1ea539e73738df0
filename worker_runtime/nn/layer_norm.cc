// Layer normalisation on the tape.
#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/fit.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

void InputGradient(Tape& tape, int slot, const Tensor& x, const Tensor& saved, const Tensor& gamma,
                   const Tensor& dy) {
  if (slot == Activation::kNoGradient) return;
  const Tape::InputTarget to = tape.BeginGradient(slot, x.dtype(), x.shape());
  tape.operations(x.dtype()).layer_norm_input(
      tape.queue(), {.x = x, .gamma = gamma, .saved = saved}, dy, to.addend, to.out);
}

// The kernel writes both; what is frozen gets a place that is dropped.
Tensor TargetOf(Tape& tape, Parameter& parameter) {
  if (!parameter.frozen()) return parameter.BeginGradient().gradient;
  Tensor dropped = tape.pool().Allocate(parameter.dtype(), parameter.shape());
  tape.operations(dropped.dtype()).clear(tape.queue(), dropped);
  return dropped;
}

void WeightGradient(Tape& tape, Parameter& gamma, Parameter& beta, const Tensor& x,
                    const Tensor& saved, const Tensor& dy) {
  if (gamma.frozen() && beta.frozen()) return;
  const bool accumulate = gamma.frozen() ? beta.has_gradient() : gamma.has_gradient();
  MUSTER_CHECK(gamma.frozen() || beta.frozen() || gamma.has_gradient() == beta.has_gradient());
  const Tensor to_gamma = TargetOf(tape, gamma);
  const Tensor to_beta = TargetOf(tape, beta);
  tape.operations(x.dtype()).layer_norm_weight(tape.queue(),
                                               {.x = x, .gamma = gamma.value(), .saved = saved}, dy,
                                               to_gamma, to_beta, accumulate);
}

}  // namespace

LayerNorm::LayerNorm(const Scope& scope, int64_t width, double epsilon)
    : weight_(scope.Declare(
          {.name = "weight", .shape = {width}, .initializer = Initializer::Constant(1)})),
      bias_(scope.Declare({.name = "bias", .shape = {width}})),
      epsilon_(epsilon) {}

Activation LayerNorm::Forward(Tape& tape, const Activation& x) const {
  if (x.value.empty()) return {};
  if (!HasWidth(x.value.shape(), weight_.num_elements())) {
    return tape.Refuse(WidthDiffers(weight_.name(), x.value.shape(), weight_.num_elements()));
  }
  const kernels::RowShape rows = RowsOf(x.value.shape());
  const DType dtype = x.value.dtype();
  Tensor y = tape.pool().Allocate(dtype, x.value.shape());
  Tensor saved = tape.pool().Allocate(StatisticsType(dtype), {2, rows.rows});
  tape.operations(dtype).layer_norm_forward(
      tape.queue(), {.x = x.value, .gamma = tape.Use(weight_), .saved = saved}, tape.Use(bias_),
      epsilon_, y);
  if (weight_.frozen() && bias_.frozen() && !x.needs_gradient()) return {.value = y};
  return tape.Record(
      y, {&weight_, &bias_},
      [&gamma = weight_, slot = x.slot, x = x.value, saved](Tape& tape, const Tensor& dy) {
        InputGradient(tape, slot, x, saved, gamma.value(), dy);
      },
      [&gamma = weight_, &beta = bias_, x = x.value, saved](Tape& tape, const Tensor& dy) {
        WeightGradient(tape, gamma, beta, x, saved, dy);
      });
}

}  // namespace muster
