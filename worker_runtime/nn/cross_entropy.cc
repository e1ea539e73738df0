// The loss on the tape.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/layers.h"
#include "worker_runtime/kernels/logit_chunks.h"
#include "worker_runtime/nn/fit.h"
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

// The same of a gradient that nobody else holds.
void ScaleInPlace(Tape& tape, const Tensor& gradient, const Tensor& dloss) {
  if (gradient.empty() || tape.IsOne(dloss)) return;
  Tensor factor = dloss;
  if (factor.dtype() != gradient.dtype()) {
    factor = tape.pool().Allocate(gradient.dtype(), {1});
    tape.operations(dloss.dtype()).cast(tape.queue(), dloss, factor);
  }
  tape.operations(gradient.dtype()).scale(tape.queue(), factor, gradient, gradient);
}

void AddToGradient(Tape& tape, Parameter& weight, const Tensor& sum) {
  const Parameter::GradientTarget to = weight.BeginGradient();
  const Operations& operations = tape.operations(to.gradient.dtype());
  if (!to.accumulate) return operations.cast(tape.queue(), sum, to.gradient);
  Tensor addend = sum;
  if (addend.dtype() != to.gradient.dtype()) {
    addend = tape.pool().Allocate(to.gradient.dtype(), sum.shape());
    operations.cast(tape.queue(), sum, addend);
  }
  operations.add(tape.queue(), to.gradient, addend, to.gradient);
}

bool CheckTargets(Tape& tape, const Shape& logits, absl::Span<const int32_t> targets) {
  const int64_t rows = RowsOf(logits).rows;
  if (static_cast<int64_t>(targets.size()) != rows) {
    tape.Refuse(absl::StrCat("CrossEntropy: there are ", targets.size(), " targets for ", rows,
                             " rows of logits, ", logits.ToString()));
    return false;
  }
  if (!tape.pool().device().has_elements()) return true;
  const int64_t sequence = logits.rank() > 2 ? logits[logits.rank() - 2] : rows;
  const absl::Status fit =
      ValidateTokens({.tokens = targets, .batch = rows / sequence, .sequence = sequence},
                     logits[logits.rank() - 1], /*allow_ignored=*/true);
  if (!fit.ok()) tape.Refuse(absl::StrCat("CrossEntropy: of the targets, ", fit.message()));
  return fit.ok();
}

// On a device without elements there is nothing to read, and all do.
int64_t NumThatCount(Tape& tape, absl::Span<const int32_t> targets) {
  if (!tape.pool().device().has_elements()) return static_cast<int64_t>(targets.size());
  return static_cast<int64_t>(targets.size()) -
         std::count(targets.begin(), targets.end(), kernels::kIgnoredTarget);
}

// The loss by the device's operation of that name, with the gradients. In f16 those are made in the
// backward pass, from logits that are computed again: multiplied by the loss's own gradient, its
// scale, before they are rounded.
Loss HeadLoss(Tape& tape, const Activation& x, Parameter& table,
              absl::Span<const int32_t> targets) {
  const DType dtype = x.value.dtype();
  const Tensor& weight = tape.Use(table);
  Tensor dx, dtable;
  if (tape.recording() && x.needs_gradient()) {
    dx = tape.pool().Allocate(dtype, x.value.shape());
  }
  if (tape.recording() && !table.frozen()) {
    const int64_t padded = kernels::PaddedVocabulary(table.shape()[0]);
    dtable = tape.pool().Allocate(DType::kF32, {padded, table.shape()[1]});
  }
  const internal::DeviceIds ids = tape.Bring(targets);
  const Tensor value = tape.pool().Allocate(dtype, {1});
  Loss loss = {.num_tokens = NumThatCount(tape, targets),
               .total = tape.pool().Allocate(DType::kF64, {1})};
  const Tensor none;
  const bool later = dtype == DType::kF16;
  // Taken with the others: the plan counts what is there at once, in this order.
  const Tensor scale = later ? tape.pool().Allocate(DType::kF32, {1}) : none;
  tape.operations(dtype).head_loss(
      tape.queue(), {.x = x.value, .table = weight, .targets = ids.data(), .gradient_scale = none},
      later ? none : dx, later ? none : dtable, value, loss.total);
  const auto make_gradients = [&table, ids, scale, x = later ? x.value : none](
                                  Tape& tape, const Tensor& dloss, const Tensor& dx,
                                  const Tensor& dtable) {
    tape.operations(x.dtype()).cast(tape.queue(), dloss, scale);
    tape.operations(x.dtype()).head_loss(
        tape.queue(),
        {.x = x, .table = table.value(), .targets = ids.data(), .gradient_scale = scale}, dx,
        dtable, {}, {});
  };
  loss.output = tape.Record(
      value, {&table},
      [make_gradients, later, slot = x.slot, dx = std::move(dx), dtable](Tape& tape,
                                                                         const Tensor& dloss) {
        if (later && !(dx.empty() && dtable.empty())) make_gradients(tape, dloss, dx, dtable);
        if (dx.empty()) return;
        if (!later) ScaleInPlace(tape, dx, dloss);
        tape.AddGradient(slot, dx);
      },
      [&table, later, padded = dtable](Tape& tape, const Tensor& dloss) {
        if (table.frozen()) return;
        const Tensor dtable = padded.Slice(0, table.shape());
        if (!later) ScaleInPlace(tape, dtable, dloss);
        AddToGradient(tape, table, dtable);
      });
  return loss;
}

}  // namespace

Loss LmHeadLoss(Tape& tape, const Activation& x, Parameter& table,
                absl::Span<const int32_t> targets) {
  if (x.value.empty()) return {};
  if (tape.operations(x.value.dtype()).head_loss == nullptr ||
      !HasWidth(x.value.shape(), table.shape()[1])) {
    return CrossEntropy(tape, LmHead(tape, x, table), targets);
  }
  const Shape logits = WithLast(x.value.shape(), table.shape()[0]);
  if (!CheckTargets(tape, logits, targets)) return {};
  return HeadLoss(tape, x, table, targets);
}

Loss CrossEntropy(Tape& tape, Activation logits, absl::Span<const int32_t> targets) {
  if (logits.value.empty()) return {};
  if (!CheckTargets(tape, logits.value.shape(), targets)) return {};
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
    loss.num_tokens = NumThatCount(tape, targets);
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
