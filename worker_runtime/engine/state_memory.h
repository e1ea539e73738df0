// Memory of the training state of one rank, by kind: what lies where, of which blocks.
//
// Threads: thread-compatible.
#pragma once

#include <cstdint>
#include <utility>

#include "muster/tensor.h"
#include "worker_runtime/engine/block_buffer.h"
#include "worker_runtime/plan/block_layout.h"

namespace muster::engine {

// Values of parameters: whole, or as shards that are gathered into an arena for their use.
class ValueMemory {
 public:
  ValueMemory() = default;
  // `shards`: of buckets that are gathered; `secondary`: those that are kept of them within a step.
  ValueMemory(BlockBuffer whole, BlockBuffer shards, BlockBuffer secondary, Tensor arena)
      : whole_(std::move(whole)),
        shards_(std::move(shards)),
        secondary_(std::move(secondary)),
        arena_(std::move(arena)) {}

  bool HoldsWhole(plan::BlockRange blocks) const { return whole_.Holds(blocks); }
  // [blocks.num_elements()], of blocks that are whole or owned, of one kind.
  Tensor Resting(plan::BlockRange blocks) const {
    return whole_.Holds(blocks) ? whole_.Part(blocks) : shards_.Part(blocks);
  }
  Tensor Secondary(plan::BlockRange blocks) const { return secondary_.Part(blocks); }
  // All of it.
  const Tensor& whole() const { return whole_.whole(); }
  const Tensor& arena() const { return arena_; }

  int64_t resting_bytes() const { return whole_.num_bytes() + shards_.num_bytes(); }
  int64_t gathered_bytes() const {
    return secondary_.num_bytes() + (arena_.empty() ? 0 : static_cast<int64_t>(arena_.num_bytes()));
  }

 private:
  BlockBuffer whole_;
  BlockBuffer shards_;
  BlockBuffer secondary_;
  Tensor arena_;
};

// What the optimizer keeps of the blocks that a rank updates. Parts are empty where nothing of
// their kind is kept.
class OptimizerMemory {
 public:
  OptimizerMemory() = default;
  // Masters are none where the values are what is updated.
  OptimizerMemory(BlockBuffer masters, BlockBuffer first_moments, BlockBuffer second_moments)
      : masters_(std::move(masters)),
        first_moments_(std::move(first_moments)),
        second_moments_(std::move(second_moments)) {}

  // [owned.num_elements()]
  Tensor Masters(plan::BlockRange owned) const { return PartOf(masters_, owned); }
  Tensor FirstMoments(plan::BlockRange owned) const { return PartOf(first_moments_, owned); }
  Tensor SecondMoments(plan::BlockRange owned) const { return PartOf(second_moments_, owned); }

  int64_t num_bytes() const {
    return masters_.num_bytes() + first_moments_.num_bytes() + second_moments_.num_bytes();
  }

 private:
  static Tensor PartOf(const BlockBuffer& buffer, plan::BlockRange owned) {
    return buffer.empty() ? Tensor() : buffer.Part(owned);
  }

  BlockBuffer masters_;
  BlockBuffer first_moments_;
  BlockBuffer second_moments_;
};

}  // namespace muster::engine
