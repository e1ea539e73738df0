#include "worker_runtime/engine/state_view.h"

#include <algorithm>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/host_copy.h"
#include "worker_runtime/engine/tensor_buffer.h"
#include "worker_runtime/nn/rounding.h"
#include "worker_runtime/plan/block_layout.h"

namespace muster::engine {

// Rounded where the types differ: a checkpoint holds the masters of parameters of 16 bits.
absl::Status StateView::Copy(const Tensor& from, const Tensor& to) const {
  return CopyAcross(state_.queue(), from, to);
}

// Nothing of a parameter of another stage.
std::vector<StateView::Owned> StateView::OwnedOf(const Parameter& parameter) const {
  std::vector<Owned> all;
  if (!state_.Holds(parameter)) return all;
  const int64_t begin = state_.layout().OffsetOf(parameter.index());
  const int64_t end = begin + parameter.num_elements();
  for (size_t b = 0; b < program_.buckets.size(); ++b) {
    const plan::BlockRange& shard = program_.buckets[b].owned;
    const int64_t first = std::max(begin, shard.first_element());
    const int64_t last = std::min(end, shard.first_element() + shard.num_elements());
    if (first >= last) continue;
    all.push_back({.bucket = static_cast<int>(b),
                   .first_in_parameter = first - begin,
                   .first_in_shard = first - shard.first_element(),
                   .count = last - first});
  }
  return all;
}

Tensor StateView::OwnPart(StateKind kind, const Owned& owned) const {
  const Tensor all = kind == StateKind::kValue         ? state_.Masters(owned.bucket)
                     : kind == StateKind::kFirstMoment ? state_.FirstMoments(owned.bucket)
                                                       : state_.SecondMoments(owned.bucket);
  return all.Slice(owned.first_in_shard, {owned.count});
}

std::vector<ElementRange> StateView::OwnRanges(const Parameter& parameter) const {
  std::vector<ElementRange> ranges;
  for (const Owned& owned : OwnedOf(parameter)) {
    ranges.push_back(owned.range());
  }
  return ranges;
}

Tensor StateView::PartWith(StateKind kind, const Parameter& parameter, ElementRange range) const {
  for (const Owned& owned : OwnedOf(parameter)) {
    if (Overlap(owned.range(), range) == range) return OwnPart(kind, owned, range);
  }
  return {};
}

Tensor StateView::OwnMemory(StateKind kind, const Parameter& parameter, ElementRange range,
                            DType dtype) const {
  const Tensor own = PartWith(kind, parameter, range);
  return !own.empty() && own.host_reads() && own.dtype() == dtype ? own : Tensor();
}

absl::Status StateView::CopyOwn(StateKind kind, const Parameter& parameter, ElementRange range,
                                const Tensor& to) const {
  return Copy(PartWith(kind, parameter, range), to);
}

std::vector<ElementRange> StateView::WantedRanges(StateKind kind,
                                                  const Parameter& parameter) const {
  if (kind != StateKind::kValue || !HasValue(parameter)) return OwnRanges(parameter);
  if (parameter.num_elements() == 0) return {};
  return {{0, parameter.num_elements()}};
}

// A value that is whole is what is updated, unless it has masters beside it.
Tensor StateView::PlaceFor(StateKind kind, const Parameter& parameter, ElementRange range,
                           DType dtype) const {
  const bool is_value = kind == StateKind::kValue && HasValue(parameter);
  if (!is_value) return OwnMemory(kind, parameter, range, dtype);
  const Tensor& value = parameter.value();
  if (!value.host_reads() || value.dtype() != dtype) return {};
  return value.Reshaped({value.num_elements()}).Slice(range.begin, {range.size()});
}

absl::Status StateView::Take(StateKind kind, const Parameter& parameter, ElementRange range,
                             const Tensor& elements) const {
  for (const Owned& owned : OwnedOf(parameter)) {
    const ElementRange both = Overlap(owned.range(), range);
    if (both.size() <= 0) continue;
    MUSTER_RETURN_IF_ERROR(
        Copy(elements.Slice(both.begin - range.begin, {both.size()}), OwnPart(kind, owned, both)));
  }
  if (kind != StateKind::kValue || !HasValue(parameter)) return absl::OkStatus();
  return CopyToValue(elements, parameter, range);
}

absl::Status StateView::CopyToValue(const Tensor& masters, const Parameter& parameter,
                                    ElementRange range) const {
  const Tensor& whole = parameter.value();
  const Tensor value = whole.Reshaped({whole.num_elements()}).Slice(range.begin, {range.size()});
  if (!rounding_ || parameter.frozen()) return Copy(masters, value);
  TensorPool pool;
  const Tensor rounded = pool.Allocate(parameter.dtype(), masters.shape());
  RoundByDraws(masters.span<float>(),
               {.key_low = rounding_->key.low,
                .key_high = rounding_->key.high,
                .first_element = state_.layout().offsets[parameter.index()] + range.begin},
               rounding_->updates, static_cast<uint16_t*>(rounded.raw_data()));
  return Copy(rounded, value);
}

}  // namespace muster::engine
