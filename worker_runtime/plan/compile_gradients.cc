// From gradients to parameters: reductions, the norm, updates, and what is gathered or lent
// afterwards.
#include <utility>

#include "worker_runtime/plan/program_compiler.h"

namespace muster::plan {
void ProgramCompiler::AddReductions() {
  if (input_.mesh.stages > 1) AddShareLoss();
}

void ProgramCompiler::ReduceStage() {
  if (replicas() == 1 || has_entries()) return;
  for (size_t b = 0; b < LearnedBuckets(program_).size(); ++b) {
    if (IsOfStage(b)) AddReduce(static_cast<int>(b), plan_.accumulation - 1, {});
  }
  Replicate();
}

void ProgramCompiler::AddReduce(int b, int64_t micro_batch, Point at) {
  const Bucket& bucket = program_.buckets[b];
  const bool by_group = AddsByGroup();
  Action reduce = {.kind = ActionKind::kReduce,
                   .stage = stage_,
                   .micro_batch = program_.streams_gradients ? micro_batch : kNone,
                   .bucket = b,
                   .blocks = bucket.blocks,
                   .merges = sums_.leaves.back().merges,
                   .collective = by_group ? Collective::kReduceScatter : Collective::kAllReduce,
                   .group = by_group ? program_.shards.group : groups_.stage};
  reduce.bytes = BytesOf(input_.types.reduced) * kBlockElements *
                 (by_group ? program_.shards.PaddedOf(bucket.blocks.num_blocks())
                           : bucket.blocks.num_blocks());
  reduce.sends = SentBytes(reduce.collective, reduce.bytes,
                           by_group ? program_.shards.size : replicas(), num_roots());
  if (at.pass != kNone) {
    if (at.entry == kNone) {
      reduce.after = {at.pass};
    } else {
      reduce.at = at;
    }
  } else if (plan_.overlap) {
    reduce.backward = last_backward_;
    reduce.first_parameter = bucket.first_parameter;
    reduce.end_parameter = bucket.end_parameter;
  } else {
    reduce.after = {last_backward_};
  }
  if (program_.streams_gradients) {
    reduce.place = gradient_place_[b];
    if (reduce.place == kNone) return;  // no gradient can come: its shard is cleared
    last_reduce_.resize(program_.buckets.size(), kNone);  // to which it adds
    if (last_reduce_[b] != kNone) reduce.after.push_back(last_reduce_[b]);
    // The head of the bucket behind is here, and that of this one has been taken by then.
    for (const int other : {BucketBehind(program_, b), BucketBefore(program_, b)}) {
      if (other != kNone && last_reduce_[other] != kNone) {
        reduce.after.push_back(last_reduce_[other]);
      }
    }
  }
  const int index = Add(std::move(reduce));
  reduced_.push_back(index);
  if (is_hybrid() && by_group && micro_batch + 1 == plan_.accumulation) {
    to_replicate_.push_back(index);
  }
  if (!program_.streams_gradients) return;
  last_reduce_[b] = index;
  // Its memory is taken again two buckets later, so that it is free by then.
  gradient_place_[b] = kNone;
  if (leaving_ != kNone) unreduced_.Give(program_.actions[leaving_].place, leaving_);
  leaving_ = index;
  if (plan_.overlap) return;
  unreduced_.Give(program_.actions[index].place, index);
  leaving_ = kNone;
}

void ProgramCompiler::Replicate() {
  for (const int reduce : to_replicate_) {
    const int b = program_.actions[reduce].bucket;
    const int64_t bytes = program_.buckets[b].owned.num_elements() * BytesOf(input_.types.reduced);
    if (bytes == 0) continue;
    const int n = replicas() / shard_ranks();
    reduced_.push_back(Add({.kind = ActionKind::kReplicate,
                            .after = {reduce},
                            .stage = stage_,
                            .bucket = b,
                            .blocks = program_.buckets[b].owned,
                            .collective = Collective::kAllReduce,
                            .group = groups_.replicas,
                            .bytes = bytes,
                            .sends = SentBytes(Collective::kAllReduce, bytes, n, 1)}));
  }
  to_replicate_.clear();
}

void ProgramCompiler::AddShareLoss() {
  Action share = {.kind = ActionKind::kShareLoss,
                  .after = {loss_ == kNone ? last_forward_ : loss_},
                  .collective = Collective::kAllReduce,
                  .group = 0,
                  .peer = GiverOfLoss(),
                  .bytes = kLossBytes,
                  .sends = SentOfSmall(kLossBytes, input_.mesh.size())};
  loss_ = Add(std::move(share));
}

int ProgramCompiler::GiverOfLoss() const {
  const int last = static_cast<int>(input_.stages.size()) - 1;
  return (PlaceOf(last) + 1) * replicas() - 1;
}

bool ProgramCompiler::AddsSquares() const {
  return input_.mesh.size() > 1 && (is_sharded() || input_.mesh.stages > 1);
}

void ProgramCompiler::AddNorm() {
  const bool gives = is_sharded() ? outer() == 0 : replica_ == 0;
  if (!AddsSquares() || gives) program_.normed = OwnedBlocks(program_);
  Action norm = {.kind = ActionKind::kNorm, .after = reduced_, .stage = stage_};
  norm.after.push_back(last_backward_);
  int ready = Add(std::move(norm));
  if (AddsSquares()) {
    // The bits of an ordered norm are those of one sum over all blocks, so each of them travels.
    const bool by_block = program_.ordered;
    const int64_t bytes = (by_block ? program_.num_blocks : 1) * kPartialBytes;
    ready = Add({.kind = ActionKind::kSquares,
                 .after = {ready},
                 .collective = Collective::kAllReduce,
                 .group = 0,
                 .bytes = bytes,
                 .sends = by_block ? SentBytes(Collective::kAllReduce, bytes, input_.mesh.size(), 1)
                                   : SentOfSmall(bytes, input_.mesh.size())});
  }
  Action clip = {.kind = ActionKind::kClip, .after = {ready}, .stage = stage_};
  if (loss_ != kNone) clip.after.push_back(loss_);
  clip_ = Add(std::move(clip));
}

void ProgramCompiler::AddUpdates() {
  std::vector<int> updates;
  for (size_t b = 0; b < LearnedBuckets(program_).size(); ++b) {
    updates.push_back(Add({.kind = ActionKind::kUpdate,
                           .after = {clip_},
                           .stage = stage_,
                           .bucket = static_cast<int>(b),
                           .blocks = program_.buckets[b].owned}));
    if (is_sharded() && !program_.buckets[b].gathered) {
      updates.back() = AddUnshard(static_cast<int>(b), updates.back());
    }
  }
  AddTiedValues(updates);
}

int ProgramCompiler::AddUnshard(int b, int update) {
  const BlockRange blocks = program_.buckets[b].blocks;
  const int64_t bytes = program_.shards.PaddedOf(blocks.num_blocks()) * kBlockElements *
                        BytesOf(input_.types.parameters);
  return Add({.kind = ActionKind::kUnshard,
              .after = {update},
              .stage = stage_,
              .bucket = b,
              .blocks = blocks,
              .collective = Collective::kAllGather,
              .group = program_.shards.group,
              .bytes = bytes,
              .sends = SentBytes(Collective::kAllGather, bytes, program_.shards.size, 1)});
}

void ProgramCompiler::AddTiedValues(const std::vector<int>& updates) {
  const std::vector<TiedStages> all = Tied();
  const auto transfer = [&](ActionKind kind, const TiedStages& tied, int place) {
    Action action = Transfer(kind, {{Payload::kValue, tied.lender, kNone}, place});
    action.bytes = BorrowedElements(tied.borrower) * BytesOf(input_.types.parameters);
    action.keeps_bytes = action.frees_bytes = action.bytes;
    if (kind == ActionKind::kSend) action.sends = action.bytes;
    return action;
  };
  for (const TiedStages& tied : all) {
    if (PlaceOf(tied.lender) != place_ || PlaceOf(tied.borrower) == place_) continue;
    Action send = transfer(ActionKind::kSend, tied, PlaceOf(tied.borrower));
    send.after = updates;
    Add(std::move(send));
  }
  for (const TiedStages& tied : all) {
    if (PlaceOf(tied.borrower) != place_ || PlaceOf(tied.lender) == place_) continue;
    Action receive = transfer(ActionKind::kRecv, tied, PlaceOf(tied.lender));
    receive.after = {last_backward_};  // which read the old one
    Add(std::move(receive));
  }
}

}  // namespace muster::plan
