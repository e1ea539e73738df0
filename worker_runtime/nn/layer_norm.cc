// Layer normalisation on the tape.
#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/fit.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

// The kernel writes both; what is frozen gets a place that is dropped.
Tensor TargetOf(Tape& tape, Parameter& parameter) {
  if (!parameter.frozen()) return parameter.BeginGradient().gradient;
  Tensor dropped = tape.pool().Allocate(parameter.dtype(), parameter.shape());
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
    of_weights = of_weights && !(gamma.frozen() && beta.frozen());
    if (!of_input && !of_weights) return;
    Tape::InputTarget input;
    if (of_input) input = tape.BeginGradient(slot, x.dtype(), x.shape());
    const bool accumulate = gamma.frozen() ? beta.has_gradient() : gamma.has_gradient();
    MUSTER_CHECK(gamma.frozen() || beta.frozen() || gamma.has_gradient() == beta.has_gradient());
    Tensor to_gamma, to_beta;
    if (of_weights) {
      to_gamma = TargetOf(tape, gamma);
      to_beta = TargetOf(tape, beta);
    }
    const kernels::RowShape rows = RowsOf(x.shape());
    tape.operations(x.dtype()).norm_backward(tape.queue(),
                                             {.x = x,
                                              .gamma = gamma.value(),
                                              .saved = saved,
                                              .shape = {.rows = rows.rows, .width = rows.width}},
                                             dy,
                                             {.addend = input.addend,
                                              .dx = input.out,
                                              .dgamma = to_gamma,
                                              .dbeta = to_beta,
                                              .accumulate = accumulate});
  }

  Parameter& gamma;
  Parameter& beta;
  int slot;
  Tensor x;
  Tensor saved;
};

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
  tape.operations(dtype).norm_forward(tape.queue(),
                                      {.x = x.value,
                                       .gamma = tape.Use(weight_),
                                       .saved = saved,
                                       .shape = {.rows = rows.rows, .width = rows.width}},
                                      tape.Use(bias_), epsilon_, y);
  if (weight_.frozen() && bias_.frozen() && !x.needs_gradient()) return {.value = y};
  const Recorded recorded = {weight_, bias_, x.slot, x.value, saved};
  return tape.Record(
      y, {&weight_, &bias_},
      [recorded](Tape& tape, const Tensor& dy) { recorded.InputGradient(tape, dy); },
      [recorded](Tape& tape, const Tensor& dy) { recorded.WeightGradient(tape, dy); });
}

}  // namespace muster
