// The loss on the tape.
#include "worker_runtime/kernels/cross_entropy.h"

#include <utility>

#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/elementwise.h"
#include "worker_runtime/nn/float_dispatch.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

// Multiplies by the gradient of the loss itself, unless that is 1.
Tensor Scaled(Tape& tape, Tensor dlogits, const Tensor& dloss) {
  WithFloat(dlogits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T factor = *dloss.data<T>();
    if (factor == T{1}) return;
    const Tensor out = tape.pool().Allocate(dlogits.dtype(), dlogits.shape());
    kernels::Elementwise<T>().scale(factor, dlogits.data<T>(), out.data<T>(), out.num_elements());
    dlogits = out;
  });
  return dlogits;
}

}  // namespace

Loss CrossEntropy(Tape& tape, Activation logits, absl::Span<const int32_t> targets) {
  const kernels::RowShape rows = RowsOf(logits.value.shape());
  MUSTER_CHECK(static_cast<int64_t>(targets.size()) == rows.rows);
  const DType dtype = logits.value.dtype();
  Tensor dlogits;
  if (tape.recording()) {
    const bool overwrite = logits.value.IsSoleOwner();
    dlogits = overwrite ? logits.value : tape.pool().Allocate(dtype, logits.value.shape());
  }
  Loss loss;
  Tensor value = tape.pool().Allocate(dtype, {1});
  WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    T* gradient = dlogits.empty() ? nullptr : dlogits.data<T>();
    const kernels::CrossEntropySum sum =
        kernels::CrossEntropy<T>().run(rows, logits.value.data<T>(), targets.data(), gradient);
    loss.sum = sum.loss;
    loss.num_tokens = sum.num_tokens;
    *value.data<T>() = static_cast<T>(sum.loss);
  });
  logits.value = Tensor();
  loss.output = tape.Record(
      value, {},
      [slot = logits.slot, dlogits = std::move(dlogits)](Tape& tape, const Tensor& dloss) {
        tape.AddGradient(slot, Scaled(tape, dlogits, dloss));
      },
      NoGradientFunction());
  return loss;
}

}  // namespace muster
