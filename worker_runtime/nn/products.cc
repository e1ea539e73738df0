#include "worker_runtime/nn/products.h"

#include <cstring>

#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/isa.h"
#include "worker_runtime/kernels/matmul.h"
#include "worker_runtime/nn/float_dispatch.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {

using kernels::Matmul;
using kernels::MatmulResult;
using kernels::RowShape;
using kernels::Transpose;

std::string InstructionSet() { return std::string(kernels::ToString(kernels::BestIsa())); }

void ProductWithTransposed(const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  const RowShape in = RowsOf(x.shape());
  const int64_t outputs = w.shape()[0];
  MUSTER_CHECK(w.shape()[1] == in.width);
  WithFloat(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Matmul({.m = in.rows, .n = outputs, .k = in.width}, T{1},
           {.data = x.data<T>(), .stride = in.width},
           {.data = w.data<T>(), .stride = in.width, .transpose = Transpose::kYes},
           MatmulResult<T>{.data = y.data<T>(), .stride = outputs, .beta = T(accumulate)});
  });
}

void PassThroughProduct(Tape& tape, int slot, Shape shape, const Tensor& dy, const Tensor& w) {
  if (slot == Activation::kNoGradient) return;
  const RowShape out = RowsOf(dy.shape());
  const int64_t inputs = w.shape()[1];
  const Tape::InputTarget to = tape.BeginGradient(slot, dy.dtype(), shape);
  const bool accumulate = !to.addend.empty();
  if (accumulate && to.addend.raw_data() != to.out.raw_data()) {
    std::memcpy(to.out.raw_data(), to.addend.raw_data(), to.out.num_bytes());
  }
  WithFloat(dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Matmul({.m = out.rows, .n = inputs, .k = out.width}, T{1},
           {.data = dy.data<T>(), .stride = out.width}, {.data = w.data<T>(), .stride = inputs},
           MatmulResult<T>{.data = to.out.data<T>(), .stride = inputs, .beta = T(accumulate)});
  });
}

void AddWeightGradient(Parameter& w, const Tensor& dy, const Tensor& x) {
  const RowShape out = RowsOf(dy.shape());
  const int64_t inputs = w.shape()[1];
  const Parameter::GradientTarget to = w.BeginGradient();
  WithFloat(dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Matmul(
        {.m = out.width, .n = inputs, .k = out.rows}, T{1},
        {.data = dy.data<T>(), .stride = out.width, .transpose = Transpose::kYes},
        {.data = x.data<T>(), .stride = inputs},
        MatmulResult<T>{.data = to.gradient.data<T>(), .stride = inputs, .beta = T(to.accumulate)});
  });
}

}  // namespace muster
