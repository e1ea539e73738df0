// The training state of one rank in flat buffers, and the views of it that parameters are bound to.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/parameter.h"
#include "muster/tensor.h"
#include "worker_runtime/plan/flat_layout.h"

namespace muster::engine {

// Threads: thread-compatible.
class FlatState {
 public:
  // Clears every buffer and binds the values of `store`, which must outlive this, as `layout` says.
  // `num_gradients`: gradient buffers, at least one; more than one for partial sums.
  FlatState(ParameterStore& store, plan::FlatLayout layout, int num_gradients);

  // Gradients of the next micro-batch go to gradients()[slot], over what is there.
  void BindGradients(int slot);

  int64_t num_elements() const { return layout_.num_elements; }
  const plan::FlatLayout& layout() const { return layout_; }
  // Each [num_elements], of the store's dtype.
  const Tensor& values() const { return values_; }
  const Tensor& first_moments() const { return first_moments_; }
  const Tensor& second_moments() const { return second_moments_; }
  const std::vector<Tensor>& gradients() const { return gradients_; }

  // The part of a flat buffer that belongs to a parameter.
  Tensor Of(const Parameter& parameter, const Tensor& flat) const;

 private:
  Tensor Allocate();

  ParameterStore& store_;
  const plan::FlatLayout layout_;
  TensorPool pool_;
  const Tensor values_;
  const Tensor first_moments_;
  const Tensor second_moments_;
  std::vector<Tensor> gradients_;
};

}  // namespace muster::engine
