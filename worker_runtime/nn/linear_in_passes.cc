#include "worker_runtime/nn/linear_in_passes.h"

#include "proto/base/status_macros.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

const Operations& OperationsOf(const Queue& queue, const Tensor& x) {
  return queue.device().operations(x.dtype());
}

}  // namespace

Product ForwardProduct(const Tensor& x, const Tensor& weight) {
  const kernels::RowShape in = RowsOf(x.shape());
  MUSTER_CHECK(weight.shape()[1] == in.width);
  return {.m = in.rows, .n = weight.shape()[0], .k = in.width, .transpose_b = true};
}

Product InputProduct(const Tensor& dy, const Tensor& weight) {
  const kernels::RowShape out = RowsOf(dy.shape());
  return {.m = out.rows, .n = weight.shape()[1], .k = out.width};
}

Product WeightProduct(const Tensor& dy, const Tensor& x, bool accumulate) {
  const kernels::RowShape out = RowsOf(dy.shape());
  return {.m = out.width,
          .n = RowsOf(x.shape()).width,
          .k = out.rows,
          .transpose_a = true,
          .accumulate = accumulate};
}

// The product is added to the sum of the others, which saves a pass.
void LinearInPasses::LinearForward(Queue& queue, Operations::Linear in, const Tensor& residual,
                                   const Tensor& y) {
  const Operations& operations = OperationsOf(queue, y);
  Product product = ForwardProduct(in.x, in.weight);
  product.accumulate = !in.bias.empty() || !residual.empty();
  if (product.accumulate) operations.bias_fill(queue, in.bias, residual, y);
  operations.multiply(queue, product, in.x, in.weight, y);
}

void LinearInPasses::LinearGelu(Queue& queue, Operations::Linear in, const Tensor& pre,
                                const Tensor& y) {
  LinearForward(queue, in, {}, pre);
  OperationsOf(queue, y).gelu_forward(queue, pre, y);
}

void LinearInPasses::GeluLinearInput(Queue& queue, const Tensor& dy, const Tensor& weight,
                                     const Tensor& pre, const Tensor& dpre) {
  const Operations& operations = OperationsOf(queue, dpre);
  operations.multiply(queue, InputProduct(dy, weight), dy, weight, dpre);
  operations.gelu_backward(queue, pre, dpre, dpre);
}

void LinearInPasses::LinearWeight(Queue& queue, const Tensor& dy, const Tensor& x,
                                  Operations::GradientSum dweight, Operations::GradientSum dbias) {
  const Operations& operations = OperationsOf(queue, dy);
  if (!dweight.to.empty()) {
    operations.multiply(queue, WeightProduct(dy, x, dweight.accumulate), dy, x, dweight.to);
  }
  if (!dbias.to.empty()) operations.bias_gradient(queue, dy, dbias.to, dbias.accumulate);
}

}  // namespace muster
