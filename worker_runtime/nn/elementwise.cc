// Layers without parameters that work element by element.
#include "muster/layers.h"
#include "worker_runtime/nn/fit.h"
#include "worker_runtime/nn/operations.h"

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

Activation Gelu::Forward(Tape& tape, const Activation& x) const {
  if (x.value.empty()) return {};
  Tensor y = tape.pool().Allocate(x.value.dtype(), x.value.shape());
  tape.operations(y.dtype()).gelu_forward(tape.queue(), x.value, y);
  const auto input_gradient = [slot = x.slot, x = x.value](Tape& tape, const Tensor& dy) {
    if (slot == Activation::kNoGradient) return;
    Tensor dx = tape.pool().Allocate(dy.dtype(), dy.shape());
    tape.operations(dy.dtype()).gelu_backward(tape.queue(), x, dy, dx);
    tape.AddGradient(slot, dx);
  };
  return tape.Record(y, {}, input_gradient, NoGradientFunction());
}

}  // namespace muster
