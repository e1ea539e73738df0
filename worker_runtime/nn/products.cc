#include "worker_runtime/nn/products.h"

#include "proto/base/status_macros.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {

using kernels::RowShape;

void ProductWithTransposed(Tape& tape, const Tensor& x, const Tensor& w, const Tensor& y,
                           bool accumulate) {
  const RowShape in = RowsOf(x.shape());
  MUSTER_CHECK(w.shape()[1] == in.width);
  tape.operations(x.dtype()).multiply(tape.queue(),
                                      {.m = in.rows,
                                       .n = w.shape()[0],
                                       .k = in.width,
                                       .transpose_b = true,
                                       .accumulate = accumulate},
                                      x, w, y);
}

void ProductWith(Tape& tape, const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate) {
  const RowShape out = RowsOf(dy.shape());
  tape.operations(dy.dtype())
      .multiply(tape.queue(),
                {.m = out.rows, .n = w.shape()[1], .k = out.width, .accumulate = accumulate}, dy, w,
                dx);
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
  const RowShape out = RowsOf(dy.shape());
  const Parameter::GradientTarget to = w.BeginGradient();
  tape.operations(dy.dtype())
      .multiply(tape.queue(),
                {.m = out.width,
                 .n = w.shape()[1],
                 .k = out.rows,
                 .transpose_a = true,
                 .accumulate = to.accumulate},
                dy, x, to.gradient);
}

}  // namespace muster
