// How the gradients of micro-batches and ranks become one: where each micro-batch writes, what is
// added on this rank, and what is asked of the communicator.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "muster/communicator.h"
#include "muster/parameter.h"
#include "muster/plan.h"
#include "muster/work.h"
#include "worker_runtime/engine/flat_state.h"
#include "worker_runtime/plan/bucket_plan.h"
#include "worker_runtime/plan/ordered_sums.h"

namespace muster::engine {

// Loss and tokens, which are added as gradients are.
struct LossSum {
  double loss = 0;
  double num_tokens = 0;  // exact: below 2^53
};

// Fast mode is one slot to which every micro-batch adds; ordered mode is PlanOrderedSums.
//
// Threads: thread-compatible.
class GradientSum {
 public:
  GradientSum(Communicator& world, ParameterStore& store, const Plan& plan);

  int num_slots() const { return sums_.num_slots; }

  // Binds the gradients of `store` to where micro-batch `index` of this rank writes them.
  void BeginMicroBatch(FlatState& state, int64_t index);
  // Counts the loss of micro-batch `index`. After the last one the sum over all ranks begins.
  void AddLoss(int64_t index, LossSum loss);
  // After the backward pass of a micro-batch that is not the last.
  void EndMicroBatch(FlatState& state, int64_t index);

  // The sum over all micro-batches and ranks of the gradients in `bucket`, once those of the last
  // micro-batch are there; it appears in Result(state).
  Work Reduce(FlatState& state, const plan::Bucket& bucket);
  const Tensor& Result(const FlatState& state) const;

  // Waits for the sum that AddLoss began. Errors: the communicator's.
  absl::StatusOr<LossSum> WaitForLoss();

 private:
  using LossPair = std::array<double, 2>;

  void Merge(FlatState& state, const plan::OrderedLeaf& leaf, int64_t first, int64_t count);
  void ReduceLoss();

  Communicator& world_;
  ParameterStore& store_;
  const SumMode mode_;
  const plan::OrderedSums sums_;
  std::vector<LossPair> losses_;  // by slot
  Work loss_work_;
};

}  // namespace muster::engine
