// The size of a flat gradient, and what makes it not a number.
#pragma once

#include <string>

#include "muster/parameter.h"
#include "muster/tensor.h"
#include "worker_runtime/engine/flat_state.h"

namespace muster::engine {

// The Euclidean norm; blocks and tree of kernels/sum_of_squares.h, so that its bits depend on the
// elements alone. `partials` is scratch memory that is kept between steps.
//
// Shapes:  flat [n], n a multiple of plan::kFlatAlignment.
// Threads: pure.
double GradientNorm(const Tensor& flat, std::vector<double>& partials);

// The factor that brings a gradient of norm `norm` to at most `norm_max`; 1 if it is or if
// `norm_max` is 0.
//
// Source: Pascanu et al., "On the difficulty of training recurrent neural networks", 2013; the
// 1e-6 as in PyTorch's clip_grad_norm_.
double ClipFactor(double norm, double norm_max);

// The first parameter whose part of `flat` holds an infinity or NaN; empty if none does.
std::string FirstNotFinite(const ParameterStore& store, const FlatState& state, const Tensor& flat);

}  // namespace muster::engine
