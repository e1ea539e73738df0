// The training state of one rank: the buffers and arenas of what its program says that it holds,
// and the views of them that parameters are bound to.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "muster/device.h"
#include "muster/parameter.h"
#include "muster/tensor.h"
#include "worker_runtime/engine/block_buffer.h"
#include "worker_runtime/engine/state_memory.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/program.h"

namespace muster::engine {

// Blocks are numbered as in the layout of the whole model, also where a rank holds few of them.
//
// Threads: thread-compatible.
class RankState {
 public:
  // Clears every buffer and binds the parameters that this rank holds whole. `store`, `program` and
  // `queue` outlive this. `borrowed`: parameters of other ranks' stages, which get buffers of their
  // own;
  // `num_moments`: of the update's rule.
  RankState(ParameterStore& store, plan::BlockLayout layout, const plan::Program& program,
            absl::Span<const int> borrowed, int num_moments, Queue& queue);

  // Initial values of what this rank holds, each element by itself.
  void Initialize(uint64_t seed);

  // Gradients of the parameters in `blocks`, those of a stage, go to slot `slot` from now on, over
  // what is there, or added to it.
  void BindGradients(int slot, plan::BlockRange blocks, bool adds);
  // Those of a bucket, of a program that streams gradients.
  void BindUnreduced(int bucket, int64_t place);
  // Clears those of a bucket that nothing was written to.
  void ZeroUnwritten(int bucket);

  // The parameters of a bucket that is gathered. BindGathered: all of it lies at `place` now.
  void BindGathered(int bucket, int64_t place);
  void UnbindGathered(int bucket);
  // Binds the parameters of a unit of another stage of a pipeline, between steps, to memory until
  // it is released. Returns that memory: [blocks of the unit] of those that learn, and of those
  // that are frozen; nothing of what it has none of.
  std::vector<Tensor> BindVisitor(int unit);
  void ReleaseVisitor();
  // Binds memory of any content after a failure, so that a pass may run to its end.
  void BindAnything(int unit);

  // Each of its type in program.types, [blocks.num_elements()]. Values: of blocks held whole or
  // owned, of one kind.
  Tensor Values(plan::BlockRange blocks) const {
    return values_[blocks.end > layout_.num_blocks].Resting(blocks);
  }
  Tensor Gradients(int slot, plan::BlockRange blocks) const {
    return gradients_[slot].Part(blocks);
  }
  // The sum over all micro-batches, of blocks that this rank owns.
  Tensor SummedGradients(plan::BlockRange blocks) const {
    return program_.streams_gradients ? gradient_shards_.Part(blocks)
                                      : Gradients(program_.sums.root_slots.front(), blocks);
  }
  // State that this rank updates of a bucket: [owned.num_elements()]; of a frozen one, its values.
  // Moments are empty where the update's rule keeps none.
  Tensor Masters(int bucket) const {
    const plan::Bucket& b = program_.buckets[bucket];
    return program_.types.has_master() && !b.frozen ? optimizer_.Masters(b.owned) : Values(b.owned);
  }
  Tensor FirstMoments(int bucket) const {
    return optimizer_.FirstMoments(program_.buckets[bucket].owned);
  }
  Tensor SecondMoments(int bucket) const {
    return optimizer_.SecondMoments(program_.buckets[bucket].owned);
  }

  // [num_blocks * kBlockElements] of the arenas.
  Tensor GatherPlace(bool frozen, int64_t place, int64_t num_blocks) const {
    return PlaceIn(values_[frozen].arena(), place, num_blocks);
  }
  Tensor UnreducedPlace(int64_t place, int64_t num_blocks) const {
    return PlaceIn(unreduced_arena_, place, num_blocks);
  }
  // All of a buffer or an arena, of which the above are parts. Empty on a rank that holds nothing
  // there.
  const Tensor& all_whole_values() const { return values_[false].whole(); }
  const Tensor& all_gradients(int slot) const { return gradients_[slot].whole(); }
  const Tensor& all_summed_gradients() const {
    return program_.streams_gradients ? gradient_shards_.whole()
                                      : all_gradients(program_.sums.root_slots.front());
  }
  const Tensor& gather_arena(bool frozen) const { return values_[frozen].arena(); }
  const Tensor& unreduced_arena() const { return unreduced_arena_; }
  // The shard of a bucket that a RESHARD keeps.
  plan::BlockRange SecondaryBlocks(int bucket) const;
  Tensor Secondary(int bucket) const {
    return values_[program_.buckets[bucket].frozen].Secondary(SecondaryBlocks(bucket));
  }

  // The elements of a parameter that lie in some blocks.
  struct Piece {
    Parameter& parameter;
    int64_t first_in_parameter;
    int64_t first_in_blocks;
    int64_t num_elements;
  };
  void ForEachPiece(plan::BlockRange blocks, absl::FunctionRef<void(const Piece&)> visit) const;
  // The blocks that a parameter has elements in.
  plan::BlockRange BlocksOf(const Parameter& parameter) const;

  // A parameter of another rank's stage, of which this one has a copy.
  bool Borrows(const Parameter& parameter) const;
  // A parameter of this rank's stages.
  bool Holds(const Parameter& parameter) const;
  // ... that is not gathered.
  bool HoldsWhole(const Parameter& parameter) const;
  // A parameter's part of a buffer that begins with element `first_element` of the layout.
  Tensor Of(const Parameter& parameter, const Tensor& buffer, int64_t first_element) const;

  const plan::BlockLayout& layout() const { return layout_; }
  Queue& queue() const { return queue_; }
  const Tensor& all_squares() const { return squares_; }
  // Squares of the gradient by block of the whole model, f64; zero where others own it. In ordered
  // mode those of each tensor rank, one after the other. [NumSquares(program)]
  Tensor squares() const { return squares_.Slice(0, {plan::NumSquares(program_)}); }
  // Those of `blocks` that this rank finds.
  Tensor SquaresOf(plan::BlockRange blocks) const {
    const int part =
        program_.ordered ? program_.mesh.CoordinateOf(program_.rank, plan::Dimension::kTensor) : 0;
    return squares_.Slice(part * program_.learned.count + blocks.begin, {blocks.num_blocks()});
  }
  // What ranks add up to the norm: those of each block in ordered mode, else their sum, which lies
  // behind them. As squares(), or [1]
  Tensor norm_parts() const {
    return program_.ordered ? squares() : squares_.Slice(plan::NumSquares(program_), {1});
  }
  // The bytes that are taken from the system.
  plan::ArenaBytes held() const;

 private:
  Tensor Allocate(DType dtype, int64_t num_elements);
  BlockBuffer AllocateBlocks(DType dtype, const std::vector<plan::BlockRange>& ranges) {
    return {ranges, Allocate(dtype, BlockBuffer::NumElements(ranges))};
  }
  void AllocateValues(bool frozen);
  std::vector<plan::BlockRange> StageRanges() const;
  void AllocateGradients();
  Tensor PlaceIn(const Tensor& arena, int64_t place, int64_t num_blocks) const {
    return arena.Slice(place * plan::kBlockElements, {num_blocks * plan::kBlockElements});
  }
  template <typename Visit>
  void ForEachParameterOf(int bucket, Visit visit) const;
  // The parameter from which on some may lie at `element` or behind it, of those that learn.
  size_t FirstAt(int64_t element) const;

  // Constant after construction.
  ParameterStore& store_;
  const plan::BlockLayout layout_;
  const plan::Program& program_;
  Queue& queue_;
  TensorPool pool_;
  ValueMemory values_[2];               // of parameters that learn, and of frozen ones
  std::vector<BlockBuffer> gradients_;  // by slot
  BlockBuffer gradient_shards_;
  Tensor unreduced_arena_;
  OptimizerMemory optimizer_;
  const Tensor squares_;  // by block, and their sum
  struct Borrowed {
    Parameter& parameter;  // of another stage
    Tensor value;
  };
  std::vector<Borrowed> borrowed_;
  int visitor_ = -1;              // a unit
  std::vector<Tensor> anything_;  // of BindAnything
};

}  // namespace muster::engine
