#include "worker_runtime/engine/reduction.h"
#include "worker_runtime/engine/tensor_buffer.h"

#include <utility>

#include "worker_runtime/nn/operations.h"

namespace muster::engine {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::BlockRange;

void Copy(Queue& queue, const Tensor& from, const Tensor& to) {
  queue.device().operations(from.dtype()).copy(queue, from, to);
}

}  // namespace

Reduction::Reduction(const plan::Program& program, std::vector<Communicator*> groups,
                     RankState& state, Queue& queue)
    : program_(program),
      groups_(std::move(groups)),
      state_(state),
      leaves_(program.leaves_per_rank),
      queue_(queue),
      pool_(queue.device()),
      padded_(program.root_slots.size()),
      losses_(program.num_slots) {
  // The backward passes say where each micro-batch goes and what is added then; REDUCE says it for
  // the last one.
  for (const Action& action : program.actions) {
    if (action.kind == ActionKind::kBackward) {
      leaves_[action.micro_batch] = {.slot = action.slot, .merges = action.merges};
    } else if (action.kind == ActionKind::kReduce) {
      leaves_.back().merges = action.merges;
    }
  }
}

void Reduction::Begin() { losses_.assign(losses_.size(), LossPair{}); }

void Reduction::AddLoss(int64_t index, LossSum loss) {
  const plan::OrderedLeaf& leaf = leaves_[index];
  LossPair& own = losses_[leaf.slot];
  if (program_.ordered) own = {};
  own[0] += loss.loss;
  own[1] += loss.num_tokens;
  for (const plan::Merge& merge : leaf.merges) {
    for (int i : {0, 1}) losses_[merge.left_slot][i] += losses_[merge.right_slot][i];
  }
}

LossSum Reduction::loss() const {
  const LossPair& sum = losses_[program_.root_slots.front()];
  return {.loss = sum[0], .num_tokens = sum[1]};
}

void Reduction::Merge(const Action& action, BlockRange blocks) {
  for (const plan::Merge& merge : action.merges) {
    const Tensor left = state_.Gradients(merge.left_slot, blocks);
    const Tensor right = state_.Gradients(merge.right_slot, blocks);
    queue_.device().operations(left.dtype()).add(queue_, left, right, left);
  }
}

Work Reduction::Start(const Action& action) {
  switch (action.kind) {
    case ActionKind::kReduce:
      return StartReduce(action);
    case ActionKind::kUnshard:
      return StartUnshard(action);
    case ActionKind::kSquares:
      // Each block is some rank's and zero on all others, so any order of adding is exact.
      return GroupOf(action).AllReduce(BufferOfTensor(state_.squares()));
    default:
      return StartLoss(action);
  }
}

Work Reduction::StartReduce(const Action& action) {
  Merge(action, action.blocks);
  std::vector<ConstBuffer> roots;
  Buffer output;
  for (size_t i = 0; i < program_.root_slots.size(); ++i) {
    Tensor root = state_.Gradients(program_.root_slots[i], action.blocks);
    if (IsPadded(action)) {
      const Tensor padded = Padded(i, action);
      Copy(queue_, root, padded);
      root = padded;
    }
    roots.push_back(BufferOfTensor(root));
    if (i == 0) output = BufferOfTensor(root);
  }
  Communicator& group = GroupOf(action);
  if (action.collective == plan::Collective::kAllReduce) {
    return program_.ordered ? group.AllReduceSubtrees(roots, output,
                                                      {.leaves_per_rank = program_.leaves_per_rank})
                            : group.AllReduce(output);
  }
  const int64_t each = output.count / group.size();
  output.data = static_cast<char*>(output.data) +
                group.rank() * each * static_cast<int64_t>(SizeOf(output.dtype));
  output.count = each;
  return program_.ordered ? group.ReduceScatterSubtrees(
                                roots, output, {.leaves_per_rank = program_.leaves_per_rank})
                          : group.ReduceScatter(roots[0], output);
}

Work Reduction::StartLoss(const Action& action) {
  Communicator& group = GroupOf(action);
  LossPair& result = losses_[program_.root_slots.front()];
  // Of the ranks that hold the sum only one gives it.
  if (action.kind == ActionKind::kShareLoss) {
    if (program_.rank + 1 != groups_[0]->size()) result = {};
    return group.AllReduce(BufferOf(result));
  }
  if (!program_.ordered) return group.AllReduce(BufferOf(result));
  std::vector<ConstBuffer> roots;
  for (const int slot : program_.root_slots) roots.push_back(ConstBufferOf(losses_[slot]));
  return group.AllReduceSubtrees(roots, BufferOf(result),
                                 {.leaves_per_rank = program_.leaves_per_rank});
}

Work Reduction::StartUnshard(const Action& action) {
  Communicator& group = GroupOf(action);
  Tensor whole = state_.Values(action.blocks);
  if (IsPadded(action)) {
    const BlockRange owned = program_.owned[action.bucket];
    whole = Padded(0, action);
    const int64_t each = whole.num_elements() / group.size();
    Copy(queue_, state_.Values(owned), whole.Slice(group.rank() * each, {owned.num_elements()}));
  }
  const Buffer output = BufferOfTensor(whole);
  const int64_t each = output.count / group.size();
  const ConstBuffer input(static_cast<char*>(output.data) +
                              group.rank() * each * static_cast<int64_t>(SizeOf(output.dtype)),
                          each, output.dtype);
  return group.AllGather(input, output);
}

void Reduction::Finish(const Action& action) {
  if (!IsPadded(action)) return;
  const Tensor padded = Padded(0, action);
  if (action.kind == ActionKind::kUnshard) {
    Copy(queue_, padded.Slice(0, {action.blocks.num_elements()}), state_.Values(action.blocks));
    return;
  }
  const BlockRange owned = program_.owned[action.bucket];
  const int64_t first = owned.first_element() - action.blocks.first_element();
  Copy(queue_, padded.Slice(first, {owned.num_elements()}),
       state_.Gradients(program_.root_slots.front(), owned));
}

bool Reduction::IsPadded(const Action& action) const {
  if (action.kind != ActionKind::kReduce && action.kind != ActionKind::kUnshard) return false;
  return action.collective != plan::Collective::kAllReduce &&
         action.blocks.num_blocks() % static_cast<int64_t>(GroupOf(action).size()) != 0;
}

Tensor Reduction::Padded(size_t index, const Action& action) {
  const Tensor like = state_.Values(action.blocks);
  const int64_t count = action.bytes / static_cast<int64_t>(SizeOf(like.dtype()));
  Tensor& buffer = padded_[index];
  if (buffer.empty() || buffer.num_elements() < count) {
    buffer = pool_.Allocate(like.dtype(), {count});
    queue_.device().operations(like.dtype()).clear(queue_, buffer);
  }
  return buffer.Slice(0, {count});
}

int64_t Reduction::buffer_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& buffer : padded_) {
    if (!buffer.empty()) bytes += static_cast<int64_t>(buffer.num_bytes());
  }
  return bytes;
}

}  // namespace muster::engine
