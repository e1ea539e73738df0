#include "worker_runtime/engine/gradient_sum.h"

#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/elementwise.h"
#include "worker_runtime/nn/float_dispatch.h"

namespace muster::engine {
namespace {

plan::OrderedSums PlanSums(const Communicator& world, const Plan& plan) {
  if (plan.mode == SumMode::kOrdered) {
    return plan::PlanOrderedSums(world.rank(), world.size(), plan.accumulation);
  }
  plan::OrderedSums one_slot = {.num_slots = 1, .root_slots = {0}};
  one_slot.leaves.resize(plan.accumulation);
  return one_slot;
}

Tensor Part(const Tensor& flat, int64_t first, int64_t count) { return flat.Slice(first, {count}); }

Buffer BufferOfTensor(const Tensor& tensor) {
  return {tensor.raw_data(), tensor.num_elements(), tensor.dtype()};
}

}  // namespace

GradientSum::GradientSum(Communicator& world, ParameterStore& store, const Plan& plan)
    : world_(world),
      store_(store),
      mode_(plan.mode),
      sums_(PlanSums(world, plan)),
      losses_(sums_.num_slots) {}

void GradientSum::BeginMicroBatch(FlatState& state, int64_t index) {
  if (mode_ == SumMode::kOrdered) {
    state.BindGradients(sums_.leaves[index].slot);
  } else if (index == 0) {
    store_.ForgetGradients();
  }
}

void GradientSum::AddLoss(int64_t index, LossSum loss) {
  const plan::OrderedLeaf& leaf = sums_.leaves[index];
  LossPair& own = losses_[leaf.slot];
  if (mode_ == SumMode::kOrdered || index == 0) own = {};
  own[0] += loss.loss;
  own[1] += loss.num_tokens;
  for (const plan::Merge& merge : leaf.merges) {
    for (int i : {0, 1}) losses_[merge.left_slot][i] += losses_[merge.right_slot][i];
  }
  if (index + 1 == static_cast<int64_t>(sums_.leaves.size())) ReduceLoss();
}

void GradientSum::ReduceLoss() {
  if (mode_ == SumMode::kFast) {
    loss_work_ = world_.AllReduce(BufferOf(losses_[0]));
    return;
  }
  std::vector<ConstBuffer> roots;
  for (int slot : sums_.root_slots) roots.push_back(ConstBufferOf(losses_[slot]));
  loss_work_ =
      world_.AllReduceSubtrees(roots, BufferOf(losses_[sums_.root_slots[0]]),
                               {.leaves_per_rank = static_cast<int64_t>(sums_.leaves.size())});
}

absl::StatusOr<LossSum> GradientSum::WaitForLoss() {
  MUSTER_RETURN_IF_ERROR(loss_work_.Wait());
  const LossPair& sum = losses_[sums_.root_slots[0]];
  return LossSum{.loss = sum[0], .num_tokens = sum[1]};
}

void GradientSum::EndMicroBatch(FlatState& state, int64_t index) {
  if (mode_ == SumMode::kFast) return;
  store_.ZeroUnwritten();
  Merge(state, sums_.leaves[index], 0, state.num_elements());
}

Work GradientSum::Reduce(FlatState& state, const plan::Bucket& bucket) {
  const int64_t first = bucket.first_element;
  const int64_t count = bucket.num_elements();
  const Buffer output = BufferOfTensor(Part(Result(state), first, count));
  if (mode_ == SumMode::kFast) return world_.AllReduce(output);
  Merge(state, sums_.leaves.back(), first, count);
  std::vector<ConstBuffer> roots;
  for (int slot : sums_.root_slots) {
    roots.push_back(BufferOfTensor(Part(state.gradients()[slot], first, count)));
  }
  return world_.AllReduceSubtrees(roots, output,
                                  {.leaves_per_rank = static_cast<int64_t>(sums_.leaves.size())});
}

const Tensor& GradientSum::Result(const FlatState& state) const {
  return state.gradients()[sums_.root_slots[0]];
}

void GradientSum::Merge(FlatState& state, const plan::OrderedLeaf& leaf, int64_t first,
                        int64_t count) {
  for (const plan::Merge& merge : leaf.merges) {
    const Tensor left = Part(state.gradients()[merge.left_slot], first, count);
    const Tensor right = Part(state.gradients()[merge.right_slot], first, count);
    WithFloat(left.dtype(), [&](auto zero) {
      using T = decltype(zero);
      kernels::Elementwise<T>().add(left.data<T>(), right.data<T>(), left.data<T>(), count);
    });
  }
}

}  // namespace muster::engine
