#include "worker_runtime/engine/reduction.h"
#include "worker_runtime/engine/tensor_buffer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/host_copy.h"
#include "worker_runtime/nn/operations.h"

namespace muster::engine {
namespace {

using plan::Action;
using plan::BlockRange;

// Losses have slots also where gradients do not.
size_t LossSlots(const plan::Program& program) {
  return static_cast<size_t>(std::max(program.sums.num_slots, 1));
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
      queue_(queue),
      pool_(queue.device()),
      padding_(plan::PadsInUnreduced(program) && program.padding_bytes > 0
                   ? state.unreduced_arena().As(DType::kU8, {program.padding_bytes})
                   : pool_.Allocate(DType::kU8, {program.padding_bytes})),
      losses_(LossSlots(program)) {
  queue_.device().operations(DType::kF32).clear(queue_, padding_);
  if (!host_reads()) {
    micro_batch_losses_ = pool_.Allocate(DType::kF64, {2, program.leaves_per_rank()});
    totals_ = pool_.Allocate(DType::kF64, {2 * static_cast<int64_t>(losses_.size())});
  }
}

void Reduction::Begin(absl::Span<const double> tokens) {
  losses_.assign(losses_.size(), LossPair{});
  summed_.assign(losses_.size(), LeafRange{});
  own_loss_is_finite_ = true;
  is_summed_ = false;
  tokens_.assign(program_.leaves_per_rank(), 0);
  tokens_are_there_ = !tokens.empty();
  if (tokens_are_there_) PutTokens(tokens);
}

void Reduction::PutTokens(absl::Span<const double> tokens) {
  const Tensor to = OfMicroBatches(1, {0, program_.leaves_per_rank()});
  queue_.device().Upload(queue_, tokens.data(), to.raw_data(), to.num_bytes());
}

void Reduction::AddLoss(int64_t index, LossSum loss, const Tensor& on_device) {
  own_loss_is_finite_ = own_loss_is_finite_ && std::isfinite(loss.loss);
  const plan::OrderedLeaf& leaf = program_.sums.leaves[index];
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
  for (const int slot : program_.sums.root_slots) {
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
  const int slot = program_.sums.root_slots.front();
  const void* from = host_reads() ? losses_[slot].data() : TotalOf(slot).raw_data();
  queue_.device().CopyBytes(queue_, from, to.raw_data(), to.num_bytes());
}

absl::StatusOr<bool> Reduction::OwnLossIsFinite() const {
  if (host_reads()) return own_loss_is_finite_;
  MUSTER_ASSIGN_OR_RETURN(const Tensor losses,
                          OnHost(queue_, OfMicroBatches(0, {0, program_.leaves_per_rank()})));
  const auto all = losses.span<double>();
  return std::all_of(all.begin(), all.end(), [](double loss) { return std::isfinite(loss); });
}

void Reduction::Merge(const std::vector<plan::Merge>& merges, BlockRange blocks) {
  for (const plan::Merge& merge : merges) {
    const Tensor left = state_.Gradients(merge.left_slot, blocks);
    const Tensor right = state_.Gradients(merge.right_slot, blocks);
    queue_.device().operations(left.dtype()).add(queue_, left, right, left);
  }
}

Work Reduction::Start(const Action& action) {
  if (const auto* reduce = action.If<plan::Reduce>()) {
    return reduce->place == plan::kNone ? StartReduce(*reduce) : StartStreamedReduce(*reduce);
  }
  if (const auto* replicate = action.If<plan::Replicate>()) return StartReplicate(*replicate);
  if (const auto* unshard = action.If<plan::Unshard>()) {
    return unshard->place == plan::kNone ? StartUnshard(*unshard) : StartGather(*unshard);
  }
  if (const auto* combine = action.If<plan::Combine>()) return StartCombine(*combine);
  if (const auto* loss = action.If<plan::SumLoss>()) return StartLoss(*loss);
  if (const auto* share = action.If<plan::ShareLoss>()) return StartShareLoss(*share);
  // In ordered mode each block is one rank's and zero on all others, so any order of adding is
  // exact.
  return GroupOf(action.As<plan::SumSquares>().exchange)
      .AllReduce(BufferOfTensor(state_.norm_parts()), {.queue = &queue_});
}

const Tensor& Reduction::WorksIn(const Action& action) const {
  if (ExchangeOf(action)->padding != plan::kNone) {
    return plan::PadsInUnreduced(program_) ? state_.unreduced_arena() : padding_;
  }
  if (const auto* reduce = action.If<plan::Reduce>()) {
    return reduce->place == plan::kNone ? state_.all_gradients(program_.sums.root_slots.front())
                                        : state_.unreduced_arena();
  }
  if (action.If<plan::Replicate>()) return state_.all_summed_gradients();
  if (const auto* unshard = action.If<plan::Unshard>()) {
    return unshard->place == plan::kNone ? state_.all_whole_values()
                                         : state_.gather_arena(BucketAt(unshard->bucket).frozen);
  }
  return action.If<plan::SumSquares>() ? state_.all_squares() : totals_;
}

// Its ranks start the same actions in the same order.
std::vector<Tensor> Reduction::MemoryOf(int group) const {
  std::vector<const Tensor*> found;
  for (const Action& action : program_.actions) {
    const plan::Exchange* const exchange = ExchangeOf(action);
    // What is combined are activations, which lie anywhere.
    if (exchange == nullptr || exchange->group != group || action.If<plan::Combine>()) continue;
    const Tensor* const memory = &WorksIn(action);
    if (std::find(found.begin(), found.end(), memory) == found.end()) found.push_back(memory);
  }
  std::vector<Tensor> all;
  for (const Tensor* memory : found) all.push_back(*memory);
  return all;
}

Buffer Reduction::ShareOf(const Buffer& whole, const Communicator& group) {
  const int64_t each = whole.count / group.size();
  const auto offset = static_cast<size_t>(group.rank() * each) * SizeOf(whole.dtype);
  return {static_cast<std::byte*>(whole.data) + offset, each, whole.dtype};
}

Work Reduction::Sum(const plan::Exchange& exchange, const std::vector<Buffer>& roots,
                    int64_t leaves_per_rank) {
  Communicator& group = GroupOf(exchange);
  const std::vector<ConstBuffer> inputs(roots.begin(), roots.end());
  const SubtreeOptions ordered = {.leaves_per_rank = leaves_per_rank, .queue = &queue_};
  const ReduceOptions fast = {.queue = &queue_};
  if (exchange.collective == plan::Collective::kAllReduce) {
    return program_.ordered ? group.AllReduceSubtrees(inputs, roots[0], ordered)
                            : group.AllReduce(roots[0], fast);
  }
  const Buffer output = ShareOf(roots[0], group);
  return program_.ordered ? group.ReduceScatterSubtrees(inputs, output, ordered)
                          : group.ReduceScatter(inputs[0], output, fast);
}

Work Reduction::StartReduce(const plan::Reduce& reduce) {
  const BlockRange blocks = BucketAt(reduce.bucket).blocks;
  Merge(reduce.merges, blocks);
  std::vector<Buffer> roots;
  for (const int slot : program_.sums.root_slots) {
    Tensor root = state_.Gradients(slot, blocks);
    if (reduce.exchange.padding != plan::kNone) {
      const Tensor padded = Padded(reduce.exchange, program_.types.reduced, roots.size());
      Convert(queue_, root, padded.Slice(0, {root.num_elements()}));
      root = padded;
    }
    roots.push_back(BufferOfTensor(root));
  }
  return Sum(reduce.exchange, roots, program_.leaves_per_rank());
}

Work Reduction::StartStreamedReduce(const plan::Reduce& reduce) {
  Tensor padded = StreamedPlace(reduce);
  if (program_.types.rounds_sums()) {
    const Tensor rounded = Padded(reduce.exchange, program_.types.reduced);
    Convert(queue_, padded, rounded);
    padded = rounded;
  }
  return Sum(reduce.exchange, {BufferOfTensor(padded)}, program_.leaves_per_rank());
}

Tensor Reduction::StreamedPlace(const plan::Reduce& reduce) const {
  const plan::Bucket& bucket = BucketAt(reduce.bucket);
  return state_.UnreducedPlace(reduce.place, bucket.padded_blocks());
}

Work Reduction::StartReplicate(const plan::Replicate& replicate) {
  Tensor sum = state_.SummedGradients(BucketAt(replicate.bucket).owned);
  if (program_.types.rounds_sums()) {
    const Tensor rounded = Padded(replicate.exchange, program_.types.reduced);
    Convert(queue_, sum, rounded);
    sum = rounded;
  }
  // The ranks of a shard group together are one leaf here.
  return Sum(replicate.exchange, {BufferOfTensor(sum)},
             program_.leaves_per_rank() * BucketAt(replicate.bucket).groups.shards.size);
}

// The ranks of a group bring as many parts whatever the rest of the job is.
Work Reduction::StartCombine(const plan::Combine& combine) {
  const SumOrder order = program_.ordered ? SumOrder::kOrdered : SumOrder::kFast;
  return GroupOf(combine.exchange)
      .AllReduce(BufferOfTensor(part_), {.order = order, .queue = &queue_});
}

Work Reduction::StartLoss(const plan::SumLoss& sum) {
  SumLosses();
  std::vector<Buffer> roots;
  for (const int slot : program_.sums.root_slots) roots.push_back(LossBuffer(slot));
  return Sum(sum.exchange, roots, program_.leaves_per_rank());
}

// One of the ranks that hold the sum gives it; the others give zeros.
Work Reduction::StartShareLoss(const plan::ShareLoss& share) {
  const int result = program_.sums.root_slots.front();
  if (program_.rank != share.giver) {
    losses_[result] = {};
    is_summed_ = true;
    if (!host_reads()) queue_.device().operations(DType::kF32).clear(queue_, TotalOf(result));
  }
  SumLosses();
  return GroupOf(share.exchange).AllReduce(LossBuffer(result), {.queue = &queue_});
}

Work Reduction::StartUnshard(const plan::Unshard& unshard) {
  Communicator& group = GroupOf(unshard.exchange);
  const plan::Bucket& bucket = BucketAt(unshard.bucket);
  Tensor whole = state_.Values(bucket.blocks);
  if (unshard.exchange.padding != plan::kNone) {
    whole = Padded(unshard.exchange, whole.dtype());
    const int64_t first = whole.num_elements() / group.size() * group.rank();
    Copy(queue_, state_.Values(bucket.owned), whole.Slice(first, {bucket.owned.num_elements()}));
  }
  const Buffer all = BufferOfTensor(whole);
  return group.AllGather(ShareOf(all, group), all, {.queue = &queue_});
}

// The own shard goes to its place, the others come beside it.
Work Reduction::StartGather(const plan::Unshard& unshard) {
  Communicator& group = GroupOf(unshard.exchange);
  const plan::Bucket& bucket = BucketAt(unshard.bucket);
  const plan::Shards& shards = unshard.secondary ? bucket.groups.near : bucket.groups.shards;
  const int64_t blocks = bucket.blocks.num_blocks();
  const Tensor whole = state_.GatherPlace(bucket.frozen, unshard.place, shards.PaddedOf(blocks));
  const Tensor own =
      unshard.secondary ? state_.Secondary(unshard.bucket) : state_.Values(bucket.owned);
  if (own.num_elements() > 0) {
    const int64_t first = shards.rank * shards.LargestOf(blocks) * plan::kBlockElements;
    Copy(queue_, own, whole.Slice(first, own.shape()));
  }
  const Buffer all = BufferOfTensor(whole);
  return group.AllGather(ShareOf(all, group), all, {.queue = &queue_});
}

void Reduction::GiveUp(const plan::Reshard& reshard) {
  const BlockRange kept = state_.SecondaryBlocks(reshard.bucket);
  if (reshard.secondary && kept.num_blocks() > 0) {
    const plan::Bucket& bucket = BucketAt(reshard.bucket);
    const Tensor whole =
        state_.GatherPlace(bucket.frozen, reshard.place, bucket.blocks.num_blocks());
    const int64_t first = kept.first_element() - bucket.blocks.first_element();
    Copy(queue_, whole.Slice(first, {kept.num_elements()}), state_.Secondary(reshard.bucket));
  }
  state_.UnbindGathered(reshard.bucket);
}

void Reduction::Finish(const Action& action) {
  const auto* const unshard = action.If<plan::Unshard>();
  const auto* const reduce = action.If<plan::Reduce>();
  if (unshard && unshard->place != plan::kNone) {
    state_.BindGathered(unshard->bucket, unshard->place);
  } else if (reduce && reduce->place != plan::kNone) {
    FinishStreamedReduce(*reduce);
  } else if (action.If<plan::Combine>()) {
    part_ = Tensor();
  } else if (ExchangeOf(action)->padding != plan::kNone) {
    FinishPadded(action);
  }
}

// The first micro-batch of a step begins the sum.
void Reduction::FinishStreamedReduce(const plan::Reduce& reduce) {
  const plan::Bucket& bucket = BucketAt(reduce.bucket);
  if (bucket.owned.num_blocks() == 0) return;
  const int64_t first = bucket.owned.first_element() - bucket.blocks.first_element();
  const Tensor part = StreamedPlace(reduce).Slice(first, {bucket.owned.num_elements()});
  if (program_.types.rounds_sums()) {
    const Tensor rounded = Padded(reduce.exchange, program_.types.reduced);
    Convert(queue_, rounded.Slice(first, part.shape()), part);
  }
  const Tensor sum = state_.SummedGradients(bucket.owned);
  if (reduce.micro_batch == 0) {
    Copy(queue_, part, sum);
  } else {
    queue_.device().operations(sum.dtype()).add(queue_, sum, part, sum);
  }
}

void Reduction::FinishPadded(const Action& action) {
  const plan::Exchange& exchange = *ExchangeOf(action);
  const plan::Bucket& bucket = BucketAt(plan::BucketOf(action));
  if (action.If<plan::Unshard>()) {
    const Tensor values = state_.Values(bucket.blocks);
    Copy(queue_, Padded(exchange, values.dtype()).Slice(0, values.shape()), values);
    return;
  }
  const Tensor padded = Padded(exchange, program_.types.reduced);
  if (action.If<plan::Replicate>()) {
    Convert(queue_, padded, state_.SummedGradients(bucket.owned));
    return;
  }
  const bool gives_all = exchange.collective == plan::Collective::kAllReduce;
  const BlockRange result = gives_all ? bucket.blocks : bucket.owned;
  if (result.num_blocks() == 0) return;
  const int64_t first = result.first_element() - bucket.blocks.first_element();
  Convert(queue_, padded.Slice(first, {result.num_elements()}),
          state_.Gradients(program_.sums.root_slots.front(), result));
}

Tensor Reduction::Padded(const plan::Exchange& exchange, DType dtype, size_t index) {
  const int64_t first = exchange.padding + static_cast<int64_t>(index) * exchange.bytes;
  return padding_.Slice(first, {exchange.bytes}).As(dtype, {exchange.bytes / plan::BytesOf(dtype)});
}

}  // namespace muster::engine
