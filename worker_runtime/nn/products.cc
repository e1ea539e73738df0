#include "worker_runtime/nn/products.h"

#include "worker_runtime/nn/linear_in_passes.h"
#include "worker_runtime/nn/operations.h"

namespace muster {

void ProductWithTransposed(Tape& tape, const Tensor& x, const Tensor& w, const Tensor& y) {
  tape.operations(x.dtype()).multiply(tape.queue(), ForwardProduct(x, w), x, w, y);
}

void ProductWith(Tape& tape, const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate) {
  Product product = InputProduct(dy, w);
  product.accumulate = accumulate;
  tape.operations(dy.dtype()).multiply(tape.queue(), product, dy, w, dx);
}

void PassThroughProduct(Tape& tape, int slot, Shape shape, const Tensor& dy, const Tensor& w) {
  if (slot == Activation::kNoGradient) return;
  const Operations& operations = tape.operations(dy.dtype());
  const Tape::InputTarget to = tape.BeginGradient(slot, dy.dtype(), shape);
  const bool accumulate = !to.addend.empty();
  if (accumulate && to.addend.raw_data() != to.out.raw_data()) {
    operations.copy(tape.queue(), to.addend, to.out);
  }
  ProductWith(tape, dy, w, to.out, accumulate);
}

void AddWeightGradient(Tape& tape, Parameter& w, const Tensor& dy, const Tensor& x) {
  if (w.frozen()) return;
  const Parameter::GradientTarget to = w.BeginGradient();
  tape.operations(dy.dtype())
      .multiply(tape.queue(), WeightProduct(dy, x, to.accumulate), dy, x, to.gradient);
}

}  // namespace muster
