// Layers without parameters that work element by element.
#include "absl/strings/str_cat.h"
#include "muster/layers.h"
#include "worker_runtime/nn/fit.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {

Activation Add(Tape& tape, const Activation& a, const Activation& b) {
  if (a.value.empty() || b.value.empty()) return {};
  if (a.value.shape() != b.value.shape()) {
    return tape.Refuse(SumDiffers("Add", a.value.shape(), b.value.shape()));
  }
  Tensor y = tape.pool().Allocate(a.value.dtype(), a.value.shape());
  tape.operations(y.dtype()).add(tape.queue(), a.value, b.value, y);
  const auto input_gradient = [a = a.slot, b = b.slot](Tape& tape, const Tensor& dy) {
    tape.AddGradient(a, dy);
    tape.AddGradient(b, dy);
  };
  return tape.Record(y, {}, input_gradient, NoGradientFunction());
}

Activation Scale(Tape& tape, const Activation& x, double factor) {
  if (x.value.empty() || factor == 1) return x;
  const auto times = [factor](Tape& on, const Tensor& of) {
    const Operations& operations = on.operations(of.dtype());
    const Tensor number = on.pool().Allocate(of.dtype(), {1});
    operations.fill(on.queue(), factor, number);
    Tensor y = on.pool().Allocate(of.dtype(), of.shape());
    operations.scale(on.queue(), number, of, y);
    return y;
  };
  const auto input_gradient = [slot = x.slot, times](Tape& on, const Tensor& dy) {
    if (slot != Activation::kNoGradient) on.AddGradient(slot, times(on, dy));
  };
  return tape.Record(times(tape, x.value), {}, input_gradient, NoGradientFunction());
}

Tensor Nonlinear::Of(Tape& tape, const Tensor& pre) const {
  const Operations& operations = tape.operations(pre.dtype());
  const bool halves = kind_ == Nonlinearity::kSwiGlu;
  const kernels::RowShape rows = RowsOf(pre.shape());
  Tensor y = tape.pool().Allocate(pre.dtype(),
                                  halves ? WithLast(pre.shape(), rows.width / 2) : pre.shape());
  (halves ? operations.swiglu_forward : operations.gelu_forward)(tape.queue(), pre, y);
  return y;
}

Activation Nonlinear::Forward(Tape& tape, const Activation& x) const {
  if (x.value.empty()) return {};
  if (kind_ == Nonlinearity::kSwiGlu && RowsOf(x.value.shape()).width % 2 != 0) {
    return tape.Refuse(absl::StrCat("SwiGLU: the input is ", x.value.shape().ToString(),
                                    ", and its last size must be even: gates and what they let "
                                    "through"));
  }
  const auto input_gradient = [kind = kind_, slot = x.slot, x = x.value](Tape& on,
                                                                         const Tensor& dy) {
    if (slot == Activation::kNoGradient) return;
    const Operations& operations = on.operations(dy.dtype());
    Tensor dx = on.pool().Allocate(x.dtype(), x.shape());
    (kind == Nonlinearity::kSwiGlu ? operations.swiglu_backward : operations.gelu_backward)(
        on.queue(), x, dy, dx);
    on.AddGradient(slot, dx);
  };
  return tape.Record(Of(tape, x.value), {}, input_gradient, NoGradientFunction());
}

}  // namespace muster
