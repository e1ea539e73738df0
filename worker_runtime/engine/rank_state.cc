#include "worker_runtime/engine/rank_state.h"

#include <algorithm>
#include <utility>

#include "worker_runtime/engine/host_copy.h"
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
      squares_(Allocate(DType::kF64, plan::NumSquares(program) + 1)) {
  for (const bool frozen : {false, true}) AllocateValues(frozen);
  AllocateGradients();
  const plan::StateTypes& types = program_.types;
  const std::vector<BlockRange> owned = plan::OwnedBlocks(program_);
  const auto allocate = [&](bool is_kept, DType dtype) {
    return is_kept ? AllocateBlocks(dtype, owned) : BlockBuffer();
  };
  optimizer_ = {allocate(types.has_master(), types.master),
                allocate(num_moments > 0, types.moments), allocate(num_moments > 1, types.moments)};
  for (const auto& parameter : store_.parameters()) {
    if (!Holds(*parameter)) continue;
    if (!HoldsWhole(*parameter)) {
      parameter->Unbind();
      continue;
    }
    const BlockRange blocks = BlocksOf(*parameter);
    parameter->BindValue(Of(*parameter, Values(blocks), blocks.first_element()));
  }
  for (const int index : borrowed) {
    Parameter& parameter = *store_.parameters()[index];
    const auto own = [&](DType dtype) {
      return Allocate(dtype, parameter.num_elements()).Reshaped(parameter.shape());
    };
    borrowed_.push_back({parameter, own(parameter.dtype())});
    parameter.BindValue(borrowed_.back().value);
    if (!parameter.frozen()) parameter.BindGradient(own(types.gradients));
  }
  if (program_.streams_gradients) return;
  for (const plan::StageBlocks& stage : program_.stages) BindGradients(0, stage.blocks, false);
}

void RankState::AllocateValues(bool frozen) {
  std::vector<BlockRange> shards;
  std::vector<BlockRange> kept;
  std::vector<BlockRange> whole;
  for (size_t b = 0; b < program_.buckets.size(); ++b) {
    const plan::Bucket& bucket = program_.buckets[b];
    if (bucket.frozen != frozen) continue;
    if (!bucket.gathered) {
      whole.push_back(bucket.blocks);
      continue;
    }
    shards.push_back(bucket.owned);
    if (bucket.groups.near.size > 1) kept.push_back(SecondaryBlocks(static_cast<int>(b)));
  }
  // Where none is gathered, a parameter that learns may lie in two buckets.
  if (shards.empty() && !frozen) whole = StageRanges();
  const DType dtype = program_.types.OfParameters(frozen);
  const int64_t arena = program_.gathered_blocks[frozen];
  values_[frozen] = {AllocateBlocks(dtype, whole), AllocateBlocks(dtype, shards),
                     AllocateBlocks(dtype, kept), Allocate(dtype, arena * plan::kBlockElements)};
}

void RankState::AllocateGradients() {
  const DType dtype = program_.types.gradients;
  for (int i = 0; i < program_.sums.num_slots; ++i) {
    gradients_.push_back(AllocateBlocks(dtype, StageRanges()));
  }
  if (program_.streams_gradients) {
    gradient_shards_ = AllocateBlocks(dtype, plan::OwnedBlocks(program_));
  }
  unreduced_arena_ = Allocate(dtype, program_.unreduced_blocks * plan::kBlockElements);
}

void RankState::Initialize(uint64_t seed) {
  for (const auto& parameter : store_.parameters()) {
    const Tensor& value = parameter->value();
    if (value.empty()) continue;
    FillInitial(queue_, *parameter, seed, 0, value.Reshaped({value.num_elements()}));
  }
  for (size_t b = 0; b < program_.buckets.size(); ++b) {
    const plan::Bucket& bucket = program_.buckets[b];
    const auto fill = [&](const Tensor& to) {
      ForEachPiece(bucket.owned, [&](const Piece& piece) {
        FillInitial(queue_, piece.parameter, seed, piece.first_in_parameter,
                    to.Slice(piece.first_in_blocks, {piece.num_elements}));
      });
    };
    if (program_.types.has_master() && !bucket.frozen) fill(Masters(static_cast<int>(b)));
    if (bucket.gathered) fill(Values(bucket.owned));
  }
}

std::vector<BlockRange> RankState::StageRanges() const {
  std::vector<BlockRange> ranges;
  for (const plan::StageBlocks& stage : program_.stages) ranges.push_back(stage.blocks);
  return ranges;
}

void RankState::BindGradients(int slot, BlockRange blocks, bool adds) {
  const Tensor all = gradients_[slot].Part(blocks);
  for (const auto& parameter : store_.parameters()) {
    if (parameter->frozen() || !blocks.Overlaps(BlocksOf(*parameter))) continue;
    parameter->BindGradient(Of(*parameter, all, blocks.first_element()));
    if (adds) parameter->BeginGradient();
  }
}

template <typename Visit>
void RankState::ForEachParameterOf(int bucket, Visit visit) const {
  const plan::Bucket& b = program_.buckets[bucket];
  for (int p = b.first_parameter; p < b.end_parameter; ++p) {
    if (store_.parameters()[p]->frozen() == b.frozen) visit(*store_.parameters()[p]);
  }
}

void RankState::BindUnreduced(int bucket, int64_t place) {
  const plan::Bucket& its = program_.buckets[bucket];
  const int64_t begin = its.blocks.first_element();
  const Tensor padded = UnreducedPlace(place, its.padded_blocks());
  int64_t written = 0;
  // What lies between parameters counts in the norm, and must be zero.
  const auto clear_until = [&](int64_t element) {
    if (element == written) return;
    const Tensor gap = padded.Slice(written, {element - written});
    queue_.device().operations(padded.dtype()).clear(queue_, gap);
  };
  ForEachParameterOf(bucket, [&](Parameter& parameter) {
    const int64_t first = layout_.offsets[parameter.index()] - begin;
    clear_until(first);
    written = first + parameter.num_elements();
    parameter.BindGradient(padded.Slice(first, parameter.shape()));
  });
  clear_until(padded.num_elements());
}

void RankState::ZeroUnwritten(int bucket) {
  ForEachParameterOf(bucket, [this](Parameter& parameter) {
    if (parameter.gradient().empty() || parameter.has_gradient()) return;
    parameter.BeginSparseGradient(queue_);
  });
}

void RankState::BindGathered(int bucket, int64_t place) {
  const BlockRange blocks = program_.buckets[bucket].blocks;
  const Tensor values = GatherPlace(program_.buckets[bucket].frozen, place, blocks.num_blocks());
  ForEachParameterOf(bucket, [&](Parameter& parameter) {
    parameter.BindValue(Of(parameter, values, blocks.first_element()));
  });
}

void RankState::UnbindGathered(int bucket) {
  ForEachParameterOf(bucket, [](Parameter& parameter) { parameter.UnbindValue(); });
}

std::vector<Tensor> RankState::BindVisitor(int unit) {
  std::vector<Tensor> parts;
  for (const bool frozen : {false, true}) {
    const BlockRange blocks = (frozen ? layout_.frozen_units : layout_.units)[unit];
    if (blocks.num_blocks() == 0) continue;
    parts.push_back(Allocate(program_.types.OfParameters(frozen), blocks.num_elements()));
    for (const auto& parameter : store_.parameters()) {
      if (parameter->unit() != unit || parameter->frozen() != frozen) continue;
      parameter->BindValue(Of(*parameter, parts.back(), blocks.first_element()));
    }
  }
  visitor_ = unit;
  return parts;
}

void RankState::ReleaseVisitor() {
  for (const auto& parameter : store_.parameters()) {
    if (parameter->unit() == visitor_) parameter->UnbindValue();
  }
  for (const Borrowed& borrowed : borrowed_) {
    if (borrowed.parameter.unit() == visitor_) borrowed.parameter.BindValue(borrowed.value);
  }
  visitor_ = -1;
}

bool RankState::Borrows(const Parameter& parameter) const {
  return std::any_of(borrowed_.begin(), borrowed_.end(),
                     [&](const Borrowed& borrowed) { return &borrowed.parameter == &parameter; });
}

void RankState::BindAnything(int unit) {
  for (size_t b = 0; b < program_.buckets.size(); ++b) {
    const plan::Bucket& bucket = program_.buckets[b];
    const bool gradients = program_.streams_gradients && !bucket.frozen;
    ForEachParameterOf(static_cast<int>(b), [&](Parameter& parameter) {
      if (parameter.unit() != unit) return;
      const auto memory = [&](DType dtype) {
        anything_.push_back(Allocate(dtype, parameter.num_elements()));
        return anything_.back().Reshaped(parameter.shape());
      };
      if (bucket.gathered && parameter.value().empty()) {
        parameter.BindValue(memory(parameter.dtype()));
      }
      if (gradients && parameter.gradient().empty()) {
        parameter.BindGradient(memory(program_.types.gradients));
      }
    });
  }
}

BlockRange RankState::SecondaryBlocks(int bucket) const {
  const plan::Shards& near = program_.buckets[bucket].groups.near;
  return plan::ShardOf(program_.buckets[bucket].blocks, near.rank, near.size);
}

bool RankState::Holds(const Parameter& parameter) const {
  return plan::HoldsBlock(program_, layout_.OffsetOf(parameter.index()) / plan::kBlockElements);
}

bool RankState::HoldsWhole(const Parameter& parameter) const {
  return Holds(parameter) && values_[parameter.frozen()].HoldsWhole(BlocksOf(parameter));
}

BlockRange RankState::BlocksOf(const Parameter& parameter) const {
  const int64_t first = layout_.OffsetOf(parameter.index());
  const int64_t end = first + parameter.num_elements();
  return {first / plan::kBlockElements, (end + plan::kBlockElements - 1) / plan::kBlockElements};
}

Tensor RankState::Of(const Parameter& parameter, const Tensor& buffer,
                     int64_t first_element) const {
  return buffer.Slice(layout_.OffsetOf(parameter.index()) - first_element, parameter.shape());
}

void RankState::ForEachPiece(BlockRange blocks, absl::FunctionRef<void(const Piece&)> visit) const {
  const int64_t begin = blocks.first_element();
  const int64_t end = blocks.end * plan::kBlockElements;
  const auto& parameters = store_.parameters();
  // Frozen ones lie in an order of their own, and few ask for them.
  const bool learns = blocks.end <= layout_.num_blocks;
  size_t next = learns ? FirstAt(begin) : 0;
  for (; next < parameters.size() && !(learns && layout_.offsets[next] >= end); ++next) {
    const int64_t offset = layout_.OffsetOf(static_cast<int>(next));
    const int64_t first = std::max(offset, begin);
    const int64_t last = std::min(offset + parameters[next]->num_elements(), end);
    if (first >= last) continue;
    visit({*parameters[next], first - offset, first - begin, last - first});
  }
}

size_t RankState::FirstAt(int64_t element) const {
  const auto behind = std::upper_bound(layout_.offsets.begin(), layout_.offsets.end(), element);
  size_t first = behind - layout_.offsets.begin();
  // One that learns has the element; frozen ones take no place here.
  while (first > 0 && layout_.frozen_offsets[first - 1] != plan::BlockLayout::kNotFrozen) --first;
  return first == 0 ? 0 : first - 1;
}

plan::ArenaBytes RankState::held() const {
  plan::ArenaBytes held = {};
  const auto bytes = [](const Tensor& tensor) {
    return tensor.empty() ? 0 : static_cast<int64_t>(tensor.num_bytes());
  };
  for (const ValueMemory& values : values_) {
    At(held, Arena::kParameters) += values.resting_bytes();
    At(held, Arena::kGathered) += values.gathered_bytes();
  }
  At(held, Arena::kGradients) = gradient_shards_.num_bytes();
  if (!gradients_.empty()) {
    At(held, Arena::kGradients) = gradients_[0].num_bytes();
    At(held, Arena::kPartialSums) = (program_.sums.num_slots - 1) * gradients_[0].num_bytes();
  }
  for (const Borrowed& borrowed : borrowed_) {
    At(held, Arena::kParameters) += bytes(borrowed.value);
    if (borrowed.parameter.frozen()) continue;
    At(held, Arena::kGradients) += bytes(borrowed.parameter.gradient());
  }
  At(held, Arena::kUnreduced) = bytes(unreduced_arena_);
  At(held, Arena::kOptimizer) = optimizer_.num_bytes();
  At(held, Arena::kBuffers) = bytes(squares_);
  return held;
}

Tensor RankState::Allocate(DType dtype, int64_t num_elements) {
  Tensor flat = pool_.Allocate(dtype, {num_elements});
  queue_.device().operations(DType::kF32).clear(queue_, flat);  // bytes
  return flat;
}

}  // namespace muster::engine
