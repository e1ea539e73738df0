// What becomes of a gradient of some size, and what makes it not a number.
#pragma once

#include "muster/tensor.h"

namespace muster::engine {

// The factor that brings a gradient of norm `norm` to at most `norm_max`; 1 if it is or if
// `norm_max` is 0.
//
// Source: Pascanu et al., "On the difficulty of training recurrent neural networks", 2013; the
// 1e-6 as in PyTorch's clip_grad_norm_.
double ClipFactor(double norm, double norm_max);

// No element is an infinity or NaN.
bool IsFinite(const Tensor& elements);

}  // namespace muster::engine
