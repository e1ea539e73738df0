// Layer normalisation on the tape.
#include "worker_runtime/kernels/layer_norm.h"

#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/float_dispatch.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

template <typename T>
typename kernels::LayerNormKernels<T>::Saved SavedOf(const Tensor& mean_and_rstd) {
  T* mean = mean_and_rstd.data<T>();
  return {.mean = mean, .rstd = mean + mean_and_rstd.shape()[1]};
}

void InputGradient(Tape& tape, int slot, const Tensor& x, const Tensor& saved, const Tensor& gamma,
                   const Tensor& dy) {
  if (slot == Activation::kNoGradient) return;
  const Tape::InputTarget to = tape.BeginGradient(slot, x.dtype(), x.shape());
  WithFloat(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* addend = to.addend.empty() ? nullptr : to.addend.data<T>();
    kernels::LayerNorm<T>().input_gradient(RowsOf(x.shape()), x.data<T>(), dy.data<T>(),
                                           gamma.data<T>(), SavedOf<T>(saved), addend,
                                           to.out.data<T>());
  });
}

void WeightGradient(Parameter& gamma, Parameter& beta, const Tensor& x, const Tensor& saved,
                    const Tensor& dy) {
  const Parameter::GradientTarget to_gamma = gamma.BeginGradient();
  const Parameter::GradientTarget to_beta = beta.BeginGradient();
  MUSTER_CHECK(to_gamma.accumulate == to_beta.accumulate);
  WithFloat(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::LayerNorm<T>().weight_gradient(RowsOf(x.shape()), x.data<T>(), dy.data<T>(),
                                            SavedOf<T>(saved),
                                            {.dgamma = to_gamma.gradient.data<T>(),
                                             .dbeta = to_beta.gradient.data<T>(),
                                             .accumulate = to_gamma.accumulate});
  });
}

}  // namespace

LayerNorm::LayerNorm(const Scope& scope, int64_t width, double epsilon)
    : weight_(scope.Declare(
          {.name = "weight", .shape = {width}, .initializer = Initializer::Constant(1)})),
      bias_(scope.Declare({.name = "bias", .shape = {width}})),
      epsilon_(epsilon) {}

Activation LayerNorm::Forward(Tape& tape, const Activation& x) const {
  const kernels::RowShape rows = RowsOf(x.value.shape());
  MUSTER_CHECK(rows.width == weight_.num_elements());
  const DType dtype = x.value.dtype();
  Tensor y = tape.pool().Allocate(dtype, x.value.shape());
  Tensor saved = tape.pool().Allocate(dtype, {2, rows.rows});
  WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    kernels::LayerNorm<T>().forward(
        rows, x.value.data<T>(),
        {.gamma = weight_.value().data<T>(), .beta = bias_.value().data<T>(), .epsilon = epsilon_},
        y.data<T>(), SavedOf<T>(saved));
  });
  return tape.Record(
      y, {&weight_, &bias_},
      [&gamma = weight_, slot = x.slot, x = x.value, saved](Tape& tape, const Tensor& dy) {
        InputGradient(tape, slot, x, saved, gamma.value(), dy);
      },
      [&gamma = weight_, &beta = bias_, x = x.value, saved](Tape&, const Tensor& dy) {
        WeightGradient(gamma, beta, x, saved, dy);
      });
}

}  // namespace muster
