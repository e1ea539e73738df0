// The loss on the tape.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/layers.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

// Multiplies by the gradient of the loss itself, unless that is 1.
Tensor Scaled(Tape& tape, Tensor dlogits, const Tensor& dloss) {
  if (tape.IsOne(dloss)) return dlogits;
  Tensor out = tape.pool().Allocate(dlogits.dtype(), dlogits.shape());
  tape.operations(out.dtype()).scale(tape.queue(), dloss, dlogits, out);
  return out;
}

}  // namespace

Loss CrossEntropy(Tape& tape, Activation logits, absl::Span<const int32_t> targets) {
  if (logits.value.empty()) return {};
  const kernels::RowShape rows = RowsOf(logits.value.shape());
  if (static_cast<int64_t>(targets.size()) != rows.rows) {
    tape.Refuse(absl::StrCat("CrossEntropy: there are ", targets.size(), " targets for ", rows.rows,
                             " rows of logits, ", logits.value.shape().ToString()));
    return {};
  }
  const DType dtype = logits.value.dtype();
  Tensor dlogits;
  if (tape.recording()) {
    const bool overwrite = logits.value.IsSoleOwner();
    dlogits = overwrite ? logits.value : tape.pool().Allocate(dtype, logits.value.shape());
  }
  Loss loss;
  Tensor value = tape.pool().Allocate(dtype, {1});
  const internal::DeviceIds ids = tape.Bring(targets);
  if (ids.are_copied()) loss.total = tape.pool().Allocate(DType::kF64, {1});
  const kernels::CrossEntropySum sum = tape.operations(dtype).cross_entropy(
      tape.queue(), logits.value, ids.data(), dlogits, value, loss.total);
  loss.sum = sum.loss;
  loss.num_tokens = sum.num_tokens;
  if (ids.are_copied()) {
    loss.sum = 0;
    loss.num_tokens = static_cast<int64_t>(targets.size()) -
                      std::count(targets.begin(), targets.end(), kernels::kIgnoredTarget);
  }
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
