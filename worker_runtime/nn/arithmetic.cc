// Products and sums for operations of a program's own, as the device of the tape computes them.
#include "muster/arithmetic.h"

#include "proto/base/status_macros.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/products.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {

void Multiply(Tape& tape, const Product& product, const Tensor& a, const Tensor& b,
              const Tensor& c) {
  MUSTER_CHECK(a.num_elements() == product.m * product.k);
  MUSTER_CHECK(b.num_elements() == product.k * product.n);
  MUSTER_CHECK(c.num_elements() == product.m * product.n);
  tape.operations(c.dtype()).multiply(tape.queue(), product, a, b, c);
}

Tensor TimesTransposed(Tape& tape, const Tensor& x, const Tensor& w) {
  const Tensor y = tape.pool().Allocate(x.dtype(), WithLast(x.shape(), w.shape()[0]));
  ProductWithTransposed(tape, x, w, y, /*accumulate=*/false);
  return y;
}

Tensor Times(Tape& tape, const Tensor& x, const Tensor& w) {
  MUSTER_CHECK(RowsOf(x.shape()).width == w.shape()[0]);
  const Tensor y = tape.pool().Allocate(x.dtype(), WithLast(x.shape(), w.shape()[1]));
  ProductWith(tape, x, w, y, /*accumulate=*/false);
  return y;
}

void AddProductGradient(Tape& tape, Parameter& weight, const Tensor& dy, const Tensor& x) {
  const kernels::RowShape out = RowsOf(dy.shape());
  const kernels::RowShape in = RowsOf(x.shape());
  MUSTER_CHECK(out.rows == in.rows);
  MUSTER_CHECK(weight.shape() == (Shape{out.width, in.width}));
  AddWeightGradient(tape, weight, dy, x);
}

void AddTensors(Tape& tape, const Tensor& a, const Tensor& b, const Tensor& out) {
  MUSTER_CHECK(a.num_elements() == out.num_elements() && b.num_elements() == out.num_elements());
  tape.operations(out.dtype()).add(tape.queue(), a, b, out);
}

}  // namespace muster
