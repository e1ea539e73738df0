// The library's kernels for operations of one's own, such as nn/low_rank.cc. They run on the device
// and the queue of the tape.
//
// Shapes: tensors are read row by row, whatever their rank. What does not fit fails the pass with a
//         sentence (Tape::Refuse) and computes nothing; a new tensor is empty then, and so is what
//         is made of it.
// Threads: as Tape.
#pragma once

#include <cstdint>

#include "muster/tape.h"
#include "muster/tensor.h"

namespace muster {

// c = op(a) op(b) [+ c], where op(a) is m by k, op(b) k by n and c m by n.
struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};
void Multiply(Tape& tape, const Product& product, const Tensor& a, const Tensor& b,
              const Tensor& c);

// x w^T and x w, new tensors, of rows x [..., k] and w [n, k] or [k, n]: the shape of x but for its
// last size.
Tensor TimesTransposed(Tape& tape, const Tensor& x, const Tensor& w);
Tensor Times(Tape& tape, const Tensor& x, const Tensor& w);
// Adds dy^T x to the gradient of `weight` [n, k], unless that is frozen; of rows dy [..., n] and
// x [..., k].
void AddProductGradient(Tape& tape, Parameter& weight, const Tensor& dy, const Tensor& x);

// x in another type, a new tensor: f32 in 16 bits, each element rounded to the nearest (ties to
// even), or 16 bits in f32. x itself where it has that type.
Tensor Cast(Tape& tape, const Tensor& x, DType dtype);

// out = a + b, all of one shape; `out` may be one of them.
void AddTensors(Tape& tape, const Tensor& a, const Tensor& b, const Tensor& out);

// Adds what `write` computes to the gradient of `weight`, unless that is frozen:
//   WriteGradient(weight, [&](const Tensor& gradient, bool accumulate) { ... });
// where `accumulate` says whether to add to what is there or to overwrite it.
template <typename Write>
void WriteGradient(Parameter& weight, Write write) {
  if (weight.frozen()) return;
  const Parameter::GradientTarget to = weight.BeginGradient();
  write(to.gradient, to.accumulate);
}

}  // namespace muster
