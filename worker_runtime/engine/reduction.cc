#include "worker_runtime/engine/reduction.h"
#include "worker_runtime/engine/tensor_buffer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/host_copy.h"
#include "worker_runtime/nn/operations.h"

namespace muster::engine {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::BlockRange;

// Losses have slots also where gradients do not.
size_t LossSlots(const plan::Program& program) {
  return static_cast<size_t>(std::max(program.num_slots, 1));
}

void Copy(Queue& queue, const Tensor& from, const Tensor& to) {
  queue.device().operations(from.dtype()).copy(queue, from, to);
}

// Rounded, or widened again, where the types differ.
void Convert(Queue& queue, const Tensor& from, const Tensor& to) {
  queue.device().operations(from.dtype()).cast(queue, from, to);
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
      padding_(plan::PadsInUnreduced(program) && program.padding_bytes > 0
                   ? state.unreduced_arena().As(DType::kU8, {program.padding_bytes})
                   : pool_.Allocate(DType::kU8, {program.padding_bytes})),
      losses_(LossSlots(program)) {
  queue_.device().operations(DType::kF32).clear(queue_, padding_);
  if (!host_reads()) {
    micro_batch_losses_ = pool_.Allocate(DType::kF64, {2, program.leaves_per_rank});
    totals_ = pool_.Allocate(DType::kF64, {2 * static_cast<int64_t>(losses_.size())});
  }
  // The backward passes say where each micro-batch goes and what is added then; REDUCE says it for
  // the last one.
  for (const Action& action : program.actions) {
    if (plan::WritesGradients(action)) {
      leaves_[action.micro_batch] = {.slot = std::max(action.slot, 0), .merges = action.merges};
    } else if (action.kind == ActionKind::kReduce && action.place == plan::kNone) {
      leaves_.back().merges = action.merges;
    }
  }
}

void Reduction::Begin(absl::Span<const double> tokens) {
  losses_.assign(losses_.size(), LossPair{});
  summed_.assign(losses_.size(), LeafRange{});
  own_loss_is_finite_ = true;
  is_summed_ = false;
  tokens_.assign(program_.leaves_per_rank, 0);
  tokens_are_there_ = !tokens.empty();
  if (tokens_are_there_) PutTokens(tokens);
}

void Reduction::PutTokens(absl::Span<const double> tokens) {
  const Tensor to = OfMicroBatches(1, {0, program_.leaves_per_rank});
  queue_.device().Upload(queue_, tokens.data(), to.raw_data(), to.num_bytes());
}

void Reduction::AddLoss(int64_t index, LossSum loss, const Tensor& on_device) {
  own_loss_is_finite_ = own_loss_is_finite_ && std::isfinite(loss.loss);
  const plan::OrderedLeaf& leaf = leaves_[index];
  LossPair& own = losses_[leaf.slot];
  LeafRange& range = summed_[leaf.slot];
  if (program_.ordered) {
    own = {};
    range = {index, index};
  }
  tokens_[index] = loss.num_tokens;
  own[0] += loss.loss;
  own[1] += loss.num_tokens;
  range.end = index + 1;
  for (const plan::Merge& merge : leaf.merges) {
    for (int i : {0, 1}) losses_[merge.left_slot][i] += losses_[merge.right_slot][i];
    summed_[merge.left_slot].end = summed_[merge.right_slot].end;
  }
  if (host_reads()) return;
  const Tensor place = OfMicroBatches(0, {index, index + 1});
  queue_.device().CopyBytes(queue_, on_device.raw_data(), place.raw_data(), place.num_bytes());
}

void Reduction::SumLosses() {
  if (host_reads() || std::exchange(is_summed_, true)) return;
  if (!tokens_are_there_) PutTokens(tokens_);
  const Operations& operations = queue_.device().operations(DType::kF32);
  operations.clear(queue_, totals_);
  for (const int slot : program_.root_slots) {
    for (const int which : {0, 1}) {
      operations.tree_sum(queue_, OfMicroBatches(which, summed_[slot]),
                          TotalOf(slot).Slice(which, {1}));
    }
  }
}

Buffer Reduction::LossBuffer(int slot) {
  return host_reads() ? BufferOf(losses_[slot]) : BufferOfTensor(TotalOf(slot));
}

void Reduction::PutLoss(const Tensor& to) {
  SumLosses();
  const int slot = program_.root_slots.front();
  const void* from = host_reads() ? losses_[slot].data() : TotalOf(slot).raw_data();
  queue_.device().CopyBytes(queue_, from, to.raw_data(), to.num_bytes());
}

absl::StatusOr<bool> Reduction::OwnLossIsFinite() const {
  if (host_reads()) return own_loss_is_finite_;
  MUSTER_ASSIGN_OR_RETURN(const Tensor losses,
                          OnHost(queue_, OfMicroBatches(0, {0, program_.leaves_per_rank})));
  const auto all = losses.span<double>();
  return std::all_of(all.begin(), all.end(), [](double loss) { return std::isfinite(loss); });
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
    case ActionKind::kReplicate:
      return StartReplicate(action);
    case ActionKind::kUnshard:
      return action.place == plan::kNone ? StartUnshard(action) : StartGather(action);
    case ActionKind::kSquares:
      // In ordered mode each block is one rank's and zero on all others, so any order of adding is
      // exact.
      return GroupOf(action).AllReduce(BufferOfTensor(state_.norm_parts()), {.queue = &queue_});
    default:
      return StartLoss(action);
  }
}

const Tensor& Reduction::WorksIn(const Action& action) const {
  if (IsPadded(action, program_)) {
    return plan::PadsInUnreduced(program_) ? state_.unreduced_arena() : padding_;
  }
  const bool has_place = action.place != plan::kNone;
  switch (action.kind) {
    case ActionKind::kReduce:
      return has_place ? state_.unreduced_arena()
                       : state_.all_gradients(program_.root_slots.front());
    case ActionKind::kReplicate:
      return state_.all_summed_gradients();
    case ActionKind::kUnshard:
      return has_place ? state_.gather_arena(program_.buckets[action.bucket].frozen)
                       : state_.all_whole_values();
    case ActionKind::kSquares:
      return state_.all_squares();
    default:
      return totals_;
  }
}

// Its ranks start the same actions in the same order.
std::vector<Tensor> Reduction::MemoryOf(int group) const {
  std::vector<const Tensor*> found;
  for (const Action& action : program_.actions) {
    if (action.group != group) continue;
    const Tensor* const memory = &WorksIn(action);
    if (std::find(found.begin(), found.end(), memory) == found.end()) found.push_back(memory);
  }
  std::vector<Tensor> all;
  for (const Tensor* memory : found) all.push_back(*memory);
  return all;
}

Buffer Reduction::ShareOf(const Tensor& whole, const Communicator& group) {
  const int64_t each = whole.num_elements() / group.size();
  return BufferOfTensor(whole.Slice(group.rank() * each, {each}));
}

Work Reduction::StartReduce(const Action& action) {
  if (action.place != plan::kNone) return StartStreamedReduce(action);
  Merge(action, action.blocks);
  std::vector<ConstBuffer> roots;
  Buffer output;
  for (size_t i = 0; i < program_.root_slots.size(); ++i) {
    Tensor root = state_.Gradients(program_.root_slots[i], action.blocks);
    if (IsPadded(action, program_)) {
      const Tensor padded = Padded(i, action);
      Convert(queue_, root, padded.Slice(0, {root.num_elements()}));
      root = padded;
    }
    roots.push_back(BufferOfTensor(root));
    if (i == 0) output = BufferOfTensor(root);
  }
  Communicator& group = GroupOf(action);
  const SubtreeOptions ordered = {.leaves_per_rank = program_.leaves_per_rank, .queue = &queue_};
  const ReduceOptions fast = {.queue = &queue_};
  if (action.collective == plan::Collective::kAllReduce) {
    return program_.ordered ? group.AllReduceSubtrees(roots, output, ordered)
                            : group.AllReduce(output, fast);
  }
  output = ShareOf(Tensor::Borrow(output.data, output.dtype, {output.count}), group);
  return program_.ordered ? group.ReduceScatterSubtrees(roots, output, ordered)
                          : group.ReduceScatter(roots[0], output, fast);
}

Work Reduction::StartStreamedReduce(const Action& action) {
  Communicator& group = GroupOf(action);
  MoveHeads(action);
  Tensor padded = StreamedPlace(action);
  if (IsRounded(action, program_)) {
    const Tensor rounded = Padded(0, action);
    Convert(queue_, padded, rounded);
    padded = rounded;
  }
  const Buffer output = ShareOf(padded, group);
  const ConstBuffer input = BufferOfTensor(padded);
  if (!program_.ordered) return group.ReduceScatter(input, output, {.queue = &queue_});
  return group.ReduceScatterSubtrees(
      {input}, output, {.leaves_per_rank = program_.leaves_per_rank, .queue = &queue_});
}

Tensor Reduction::StreamedPlace(const Action& action) const {
  return state_.UnreducedPlace(action.place + plan::HeadBlocks(program_.buckets[action.bucket]),
                               program_.shards.PaddedOf(action.blocks.num_blocks()));
}

void Reduction::MoveHeads(const Action& action) {
  const plan::Bucket& bucket = program_.buckets[action.bucket];
  const auto end_of = [](const Tensor& whole, int64_t end, int64_t count) {
    return whole.Slice(end - count, {count});
  };
  if (const int64_t head = bucket.head_elements; head > 0) {
    const Tensor block = state_.UnreducedPlace(action.place, 1);
    Copy(queue_, end_of(block, plan::kBlockElements, head), state_.HeadPlace(bucket));
  }
  const int behind = plan::BucketBehind(program_, action.bucket);
  if (behind == plan::kNone) return;
  const Tensor head = state_.HeadPlace(program_.buckets[behind]);
  Copy(queue_, head,
       end_of(StreamedPlace(action), bucket.blocks.num_elements(), head.num_elements()));
}

// The ranks of a shard group together are one leaf here.
Work Reduction::StartReplicate(const Action& action) {
  Communicator& group = GroupOf(action);
  const Tensor own = state_.SummedGradients(action.blocks);
  if (IsRounded(action, program_)) {
    const Tensor rounded = Padded(0, action);
    Convert(queue_, own, rounded);
    return group.AllReduce(BufferOfTensor(rounded), {.queue = &queue_});
  }
  const Buffer sum = BufferOfTensor(own);
  if (!program_.ordered) return group.AllReduce(sum, {.queue = &queue_});
  return group.AllReduceSubtrees(
      {sum}, sum,
      {.leaves_per_rank = program_.leaves_per_rank * program_.shards.size, .queue = &queue_});
}

Work Reduction::StartLoss(const Action& action) {
  Communicator& group = GroupOf(action);
  const int result = program_.root_slots.front();
  // Only one of the ranks that hold the sum gives it.
  if (action.kind == ActionKind::kShareLoss) {
    if (program_.rank != action.peer) {
      losses_[result] = {};
      is_summed_ = true;
      if (!host_reads()) queue_.device().operations(DType::kF32).clear(queue_, TotalOf(result));
    }
    SumLosses();
    return group.AllReduce(LossBuffer(result), {.queue = &queue_});
  }
  SumLosses();
  if (!program_.ordered) return group.AllReduce(LossBuffer(result), {.queue = &queue_});
  std::vector<ConstBuffer> roots;
  for (const int slot : program_.root_slots) roots.push_back(LossBuffer(slot));
  return group.AllReduceSubtrees(roots, LossBuffer(result),
                                 {.leaves_per_rank = program_.leaves_per_rank, .queue = &queue_});
}

Work Reduction::StartUnshard(const Action& action) {
  Communicator& group = GroupOf(action);
  Tensor whole = state_.Values(action.blocks);
  if (IsPadded(action, program_)) {
    const BlockRange owned = program_.buckets[action.bucket].owned;
    whole = Padded(0, action);
    const int64_t each = whole.num_elements() / group.size();
    Copy(queue_, state_.Values(owned), whole.Slice(group.rank() * each, {owned.num_elements()}));
  }
  return group.AllGather(ShareOf(whole, group), BufferOfTensor(whole), {.queue = &queue_});
}

// The own shard goes to its place, the others come beside it.
Work Reduction::StartGather(const Action& action) {
  Communicator& group = GroupOf(action);
  const plan::Shards& shards = action.secondary ? program_.secondary : program_.shards;
  const int64_t blocks = action.blocks.num_blocks();
  const plan::Bucket& bucket = program_.buckets[action.bucket];
  const Tensor whole = state_.GatherPlace(bucket.frozen, action.place, shards.PaddedOf(blocks));
  const Tensor own =
      action.secondary ? state_.Secondary(action.bucket) : state_.Values(bucket.owned);
  if (own.num_elements() > 0) {
    const int64_t first = shards.rank * shards.LargestOf(blocks) * plan::kBlockElements;
    Copy(queue_, own, whole.Slice(first, own.shape()));
  }
  return group.AllGather(ShareOf(whole, group), BufferOfTensor(whole), {.queue = &queue_});
}

void Reduction::GiveUp(const Action& action) {
  if (action.secondary) {
    const BlockRange kept = state_.SecondaryBlocks(action.bucket);
    if (kept.num_blocks() > 0) {
      const bool frozen = program_.buckets[action.bucket].frozen;
      const Tensor whole = state_.GatherPlace(frozen, action.place, action.blocks.num_blocks());
      const int64_t first = kept.first_element() - action.blocks.first_element();
      Copy(queue_, whole.Slice(first, {kept.num_elements()}), state_.Secondary(action.bucket));
    }
  }
  state_.UnbindGathered(action.bucket);
}

void Reduction::Finish(const Action& action) {
  if (action.kind == ActionKind::kUnshard && action.place != plan::kNone) {
    state_.BindGathered(action.bucket, action.place);
  } else if (action.kind == ActionKind::kReduce && action.place != plan::kNone) {
    FinishStreamedReduce(action);
  } else if (IsPadded(action, program_)) {
    FinishPadded(action);
  }
}

// The first micro-batch of a step begins the sum.
void Reduction::FinishStreamedReduce(const Action& action) {
  const BlockRange owned = program_.buckets[action.bucket].owned;
  if (owned.num_blocks() == 0) return;
  const int64_t first = owned.first_element() - action.blocks.first_element();
  const Tensor part = StreamedPlace(action).Slice(first, {owned.num_elements()});
  if (IsRounded(action, program_)) {
    Convert(queue_, Padded(0, action).Slice(first, part.shape()), part);
  }
  const Tensor sum = state_.SummedGradients(owned);
  if (action.micro_batch == 0) {
    Copy(queue_, part, sum);
  } else {
    queue_.device().operations(sum.dtype()).add(queue_, sum, part, sum);
  }
}

void Reduction::FinishPadded(const Action& action) {
  const Tensor padded = Padded(0, action);
  if (action.kind == ActionKind::kUnshard) {
    Copy(queue_, padded.Slice(0, {action.blocks.num_elements()}), state_.Values(action.blocks));
    return;
  }
  if (action.kind == ActionKind::kReplicate) {
    Convert(queue_, padded, state_.SummedGradients(action.blocks));
    return;
  }
  const bool gives_all = action.collective == plan::Collective::kAllReduce;
  const BlockRange result = gives_all ? action.blocks : program_.buckets[action.bucket].owned;
  if (result.num_blocks() == 0) return;
  const int64_t first = result.first_element() - action.blocks.first_element();
  Convert(queue_, padded.Slice(first, {result.num_elements()}),
          state_.Gradients(program_.root_slots.front(), result));
}

Tensor Reduction::Padded(size_t index, const Action& action) {
  const bool is_values = action.kind == ActionKind::kUnshard;
  const DType dtype = is_values ? program_.types.parameters : program_.types.reduced;
  const int64_t first = action.padding + static_cast<int64_t>(index) * action.bytes;
  return padding_.Slice(first, {action.bytes}).As(dtype, {action.bytes / plan::BytesOf(dtype)});
}

}  // namespace muster::engine
