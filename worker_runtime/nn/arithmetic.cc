// Products and sums for operations of a program's own, as the device of the tape computes them.
#include "muster/arithmetic.h"

#include "proto/base/status_macros.h"
#include "worker_runtime/nn/operations.h"

namespace muster {

void Multiply(Tape& tape, const Product& product, const Tensor& a, const Tensor& b,
              const Tensor& c) {
  MUSTER_CHECK(a.num_elements() == product.m * product.k);
  MUSTER_CHECK(b.num_elements() == product.k * product.n);
  MUSTER_CHECK(c.num_elements() == product.m * product.n);
  tape.operations(c.dtype()).multiply(tape.queue(), product, a, b, c);
}

void AddTensors(Tape& tape, const Tensor& a, const Tensor& b, const Tensor& out) {
  MUSTER_CHECK(a.num_elements() == out.num_elements() && b.num_elements() == out.num_elements());
  tape.operations(out.dtype()).add(tape.queue(), a, b, out);
}

}  // namespace muster
