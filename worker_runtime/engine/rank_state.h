// The training state of one rank: the flat buffers of what its program says that it holds, and the
// views of them that parameters are bound to.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "muster/device.h"
#include "muster/parameter.h"
#include "muster/tensor.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/program.h"

namespace muster::engine {

// Blocks are numbered as in the layout of the whole model, also where a rank holds few of them.
//
// Threads: thread-compatible.
class RankState {
 public:
  // Clears every buffer and binds the parameters that this rank holds. `store`, `program` and `queue`
  // outlive this. `borrowed`: parameters of other stages, which get buffers of their own;
  // `num_moments`: of the update's rule.
  RankState(ParameterStore& store, plan::BlockLayout layout, const plan::Program& program,
            absl::Span<const int> borrowed, int num_moments, Queue& queue);

  // Gradients of the next micro-batch go to slot `slot`, over what is there.
  void BindGradients(int slot);

  // Each of its type in program.types, [blocks.num_elements()].
  Tensor Values(plan::BlockRange blocks) const { return Part(values_, blocks); }
  Tensor Gradients(int slot, plan::BlockRange blocks) const {
    return Part(gradients_[slot], blocks);
  }
  // Of what this rank updates of a bucket: [program.owned[bucket].num_elements()]. Moments are empty
  // where the update's rule keeps none.
  Tensor Masters(int bucket) const {
    return program_.types.has_master() ? OwnedPart(masters_, bucket)
                                       : Values(program_.owned[bucket]);
  }
  Tensor FirstMoments(int bucket) const { return OwnedPart(first_moments_, bucket); }
  Tensor SecondMoments(int bucket) const { return OwnedPart(second_moments_, bucket); }

  // Values of the frozen parameters, which every rank holds; empty if there are none.
  const Tensor& frozen() const { return frozen_; }
  // All of them, in the order of blocks.
  const Tensor& first_moments() const { return first_moments_; }
  const Tensor& second_moments() const { return second_moments_; }

  // The elements of a parameter that lie in some blocks.
  struct Piece {
    const Parameter& parameter;
    int64_t first_in_parameter;
    int64_t first_in_blocks;
    int64_t num_elements;
  };
  void ForEachPiece(plan::BlockRange blocks, absl::FunctionRef<void(const Piece&)> visit) const;

  bool Holds(const Parameter& parameter) const;
  // A parameter's part of a buffer that begins with element `first_element` of the layout.
  Tensor Of(const Parameter& parameter, const Tensor& buffer, int64_t first_element) const;

  const plan::BlockLayout& layout() const { return layout_; }
  // Squares of the gradient by block of the whole model, f64; zero where others own it.
  const Tensor& squares() const { return squares_; }
  // Of bytes that are taken from the system.
  plan::ArenaBytes held() const;

 private:
  Tensor Allocate(DType dtype, int64_t num_elements);
  void BindFrozen();
  Tensor Part(const Tensor& buffer, plan::BlockRange blocks) const;
  Tensor OwnedPart(const Tensor& moments, int bucket) const;

  // Constant after construction.
  ParameterStore& store_;
  const plan::BlockLayout layout_;
  const plan::Program& program_;
  Queue& queue_;
  TensorPool pool_;
  const Tensor values_;
  std::vector<Tensor> gradients_;     // by slot
  std::vector<int64_t> first_owned_;  // by bucket: element of the moments
  Tensor masters_;                    // empty where the values are what is updated
  Tensor first_moments_;
  Tensor second_moments_;
  Tensor frozen_;
  const Tensor squares_;
};

}  // namespace muster::engine
