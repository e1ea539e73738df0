// A layer's product and what stands around it, one kernel of the queue's device after another: what
// a device does that does not have them in one, and what those that do are compared with.
#pragma once

#include "muster/device.h"
#include "muster/tensor.h"
#include "worker_runtime/nn/operations.h"

namespace muster {

// The operations of those names; between two kernels numbers are rounded to the type of the
// tensors.
struct LinearInPasses {
  static void LinearForward(Queue& queue, Operations::Linear in, const Tensor& residual,
                            const Tensor& y);
  static void LinearGelu(Queue& queue, Operations::Linear in, const Tensor& pre, const Tensor& y);
  static void GeluLinearInput(Queue& queue, const Tensor& dy, const Tensor& weight,
                              const Tensor& pre, const Tensor& dpre);
  static void LinearWeight(Queue& queue, const Tensor& dy, const Tensor& x,
                           Operations::GradientSum dweight, Operations::GradientSum dbias);
};

// The products in them.
Product ForwardProduct(const Tensor& x, const Tensor& weight);              // x weight^T
Product InputProduct(const Tensor& dy, const Tensor& weight);               // dy weight
Product WeightProduct(const Tensor& dy, const Tensor& x, bool accumulate);  // dy^T x

}  // namespace muster
