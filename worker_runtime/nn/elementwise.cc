// Layers without parameters that work element by element.
#include "worker_runtime/kernels/elementwise.h"

#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/gelu.h"
#include "worker_runtime/nn/float_dispatch.h"

namespace muster {

Activation Add(Tape& tape, const Activation& a, const Activation& b) {
  MUSTER_CHECK(a.value.shape() == b.value.shape());
  Tensor y = tape.pool().Allocate(a.value.dtype(), a.value.shape());
  WithFloat(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::Elementwise<T>().add(a.value.data<T>(), b.value.data<T>(), y.data<T>(),
                                  y.num_elements());
  });
  const auto input_gradient = [a = a.slot, b = b.slot](Tape& tape, const Tensor& dy) {
    tape.AddGradient(a, dy);
    tape.AddGradient(b, dy);
  };
  return tape.Record(y, {}, input_gradient, NoGradientFunction());
}

Activation Gelu::Forward(Tape& tape, const Activation& x) const {
  Tensor y = tape.pool().Allocate(x.value.dtype(), x.value.shape());
  WithFloat(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::Gelu<T>().forward(x.value.data<T>(), y.data<T>(), y.num_elements());
  });
  const auto input_gradient = [slot = x.slot, x = x.value](Tape& tape, const Tensor& dy) {
    if (slot == Activation::kNoGradient) return;
    Tensor dx = tape.pool().Allocate(dy.dtype(), dy.shape());
    WithFloat(dy.dtype(), [&](auto zero) {
      using T = decltype(zero);
      kernels::Gelu<T>().backward(x.data<T>(), dy.data<T>(), dx.data<T>(), dx.num_elements());
    });
    tape.AddGradient(slot, dx);
  };
  return tape.Record(y, {}, input_gradient, NoGradientFunction());
}

}  // namespace muster
