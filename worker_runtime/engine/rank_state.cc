#include "worker_runtime/engine/rank_state.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "worker_runtime/nn/operations.h"

namespace muster::engine {

using plan::Arena;
using plan::BlockRange;

RankState::RankState(ParameterStore& store, plan::BlockLayout layout, const plan::Program& program,
                     absl::Span<const int> borrowed, int num_moments, Queue& queue)
    : store_(store),
      layout_(std::move(layout)),
      program_(program),
      queue_(queue),
      pool_(queue.device()),
      values_(Allocate(store.dtype(), program.blocks.num_elements())),
      squares_(Allocate(DType::kF64, layout_.num_blocks)) {
  for (int i = 0; i < program_.num_slots; ++i) {
    gradients_.push_back(Allocate(program.types.gradients, program.blocks.num_elements()));
  }
  std::vector<size_t> by_blocks(program_.owned.size());
  std::iota(by_blocks.begin(), by_blocks.end(), size_t{0});
  std::sort(by_blocks.begin(), by_blocks.end(),
            [&](size_t a, size_t b) { return program_.owned[a].begin < program_.owned[b].begin; });
  int64_t owned = 0;
  first_owned_.resize(by_blocks.size());
  for (const size_t bucket : by_blocks) {
    first_owned_[bucket] = owned;
    owned += program_.owned[bucket].num_elements();
  }
  if (program_.types.has_master()) masters_ = Allocate(program_.types.master, owned);
  if (num_moments > 0) first_moments_ = Allocate(program_.types.moments, owned);
  if (num_moments > 1) second_moments_ = Allocate(program_.types.moments, owned);
  BindFrozen();
  for (const auto& parameter : store_.parameters()) {
    if (Holds(*parameter)) {
      parameter->BindValue(Of(*parameter, values_, program_.blocks.first_element()));
    }
  }
  for (const int index : borrowed) {
    Parameter& parameter = *store_.parameters()[index];
    const auto own = [&](DType dtype) {
      return Allocate(dtype, parameter.num_elements()).Reshaped(parameter.shape());
    };
    parameter.BindValue(own(parameter.dtype()));
    parameter.BindGradient(own(program_.types.gradients));
  }
  BindGradients(0);
}

void RankState::BindFrozen() {
  int64_t elements = 0;
  for (const auto& parameter : store_.parameters()) {
    if (parameter->frozen()) elements += plan::PlacedElements(parameter->num_elements());
  }
  if (elements == 0) return;
  frozen_ = Allocate(store_.dtype(), elements);
  int64_t first = 0;
  for (const auto& parameter : store_.parameters()) {
    if (!parameter->frozen()) continue;
    parameter->BindValue(frozen_.Slice(first, parameter->shape()));
    first += plan::PlacedElements(parameter->num_elements());
  }
}

void RankState::BindGradients(int slot) {
  for (const auto& parameter : store_.parameters()) {
    if (!Holds(*parameter)) continue;
    parameter->BindGradient(Of(*parameter, gradients_[slot], program_.blocks.first_element()));
  }
}

bool RankState::Holds(const Parameter& parameter) const {
  if (parameter.frozen()) return false;
  const int64_t first = layout_.offsets[parameter.index()];
  return program_.blocks.first_element() <= first &&
         first < program_.blocks.end * plan::kBlockElements;
}

Tensor RankState::Of(const Parameter& parameter, const Tensor& buffer,
                     int64_t first_element) const {
  return buffer.Slice(layout_.offsets[parameter.index()] - first_element, parameter.shape());
}

void RankState::ForEachPiece(BlockRange blocks, absl::FunctionRef<void(const Piece&)> visit) const {
  const int64_t begin = blocks.first_element();
  const int64_t end = blocks.end * plan::kBlockElements;
  for (const auto& parameter : store_.parameters()) {
    if (parameter->frozen()) continue;
    const int64_t offset = layout_.offsets[parameter->index()];
    const int64_t first = std::max(offset, begin);
    const int64_t last = std::min(offset + parameter->num_elements(), end);
    if (first >= last) continue;
    visit({*parameter, first - offset, first - begin, last - first});
  }
}

Tensor RankState::Part(const Tensor& buffer, BlockRange blocks) const {
  return buffer.Slice(blocks.first_element() - program_.blocks.first_element(),
                      {blocks.num_elements()});
}

Tensor RankState::OwnedPart(const Tensor& moments, int bucket) const {
  if (moments.empty()) return {};
  return moments.Slice(first_owned_[bucket], {program_.owned[bucket].num_elements()});
}

plan::ArenaBytes RankState::held() const {
  plan::ArenaBytes held = {};
  const auto bytes = [](const Tensor& tensor) {
    return tensor.empty() ? 0 : static_cast<int64_t>(tensor.num_bytes());
  };
  At(held, Arena::kParameters) = bytes(values_) + bytes(frozen_);
  At(held, Arena::kGradients) = bytes(gradients_[0]);
  At(held, Arena::kPartialSums) = (program_.num_slots - 1) * bytes(gradients_[0]);
  At(held, Arena::kOptimizer) = bytes(first_moments_) + bytes(second_moments_) + bytes(masters_);
  At(held, Arena::kBuffers) = bytes(squares_);
  return held;
}

Tensor RankState::Allocate(DType dtype, int64_t num_elements) {
  Tensor flat = pool_.Allocate(dtype, {num_elements});
  queue_.device().operations(dtype).clear(queue_, flat);
  return flat;
}

}  // namespace muster::engine
