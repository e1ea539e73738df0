// The three products of a layer with a matrix W [outputs, inputs], shared by linear layers and the
// tied head.
#pragma once

#include "muster/parameter.h"
#include "muster/tape.h"
#include "muster/tensor.h"

namespace muster {

// Whether there is such a weight, and it learns.
inline bool Learns(const Parameter* weight) { return weight != nullptr && !weight->frozen(); }

// y = x W^T.  x [.., inputs], y [.., outputs]
void ProductWithTransposed(Tape& tape, const Tensor& x, const Tensor& w, const Tensor& y);

// dx = dy W, or dx += dy W.  dy [.., outputs], dx [.., inputs]
void ProductWith(Tape& tape, const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate);

// The gradient dy W [.., inputs], of `shape`, to the activation of `slot`, if it wants one.
void PassThroughProduct(Tape& tape, int slot, Shape shape, const Tensor& dy, const Tensor& w);

// dW [+]= dy^T x, unless W is frozen.
void AddWeightGradient(Tape& tape, Parameter& w, const Tensor& dy, const Tensor& x);

}  // namespace muster
