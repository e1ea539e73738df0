#include "worker_runtime/plan/gradient_reductions.h"

#include <algorithm>
#include <utility>

namespace muster::plan {

GradientReductions::GradientReductions(ProgramDraft& draft, const std::vector<UnitUse>& uses)
    : draft_(draft),
      uses_(uses),
      place_(draft.program.buckets.size(), kNone),
      is_reduced_(draft.program.buckets.size()),
      last_reduce_(draft.program.buckets.size(), kNone) {}

void GradientReductions::Begin(Entry& entry) {
  const int b = GradientBucketOf(draft_.program, entry.unit);
  if (b == kNone || place_[b] != kNone) return;
  entry.place = place_[b] = arena_.Take(draft_.BlocksOfGradients(b), entry.waits);
}

void GradientReductions::ReduceWhatIsComplete(const PlannedPass& pass, size_t use, Point at) {
  for (size_t b = 0; b < LearnedBuckets(draft_.program).size(); ++b) {
    const bool comes =
        std::any_of(uses_.begin() + static_cast<int64_t>(use),
                    uses_.begin() + static_cast<int64_t>(pass.end_use), [&](const UnitUse& other) {
                      return GradientBucketOf(draft_.program, other.unit) == static_cast<int>(b);
                    });
    if (comes || !draft_.IsOfStage(b) || is_reduced_[b]) continue;
    // Not used at all: with the end of the pass.
    const bool used =
        std::any_of(uses_.begin() + static_cast<int64_t>(pass.first_use),
                    uses_.begin() + static_cast<int64_t>(use), [&](const UnitUse& other) {
                      return GradientBucketOf(draft_.program, other.unit) == static_cast<int>(b);
                    });
    if (!used && at.entry != kNone) continue;
    is_reduced_[b] = true;
    Add(static_cast<int>(b), pass.micro_batch(), at);
  }
  if (at.entry == kNone) is_reduced_.assign(is_reduced_.size(), false);
}

void GradientReductions::ReduceStage() {
  if (draft_.replicas() == 1 || draft_.has_entries()) return;
  for (size_t b = 0; b < LearnedBuckets(draft_.program).size(); ++b) {
    if (draft_.IsOfStage(b)) Add(static_cast<int>(b), draft_.input.plan.accumulation - 1, {});
  }
  Replicate();
}

Action GradientReductions::ActionOf(int b, int64_t micro_batch, Point at) const {
  const Bucket& bucket = draft_.program.buckets[b];
  const bool by_group = draft_.AddsByGroup();
  Action reduce = {.kind = ActionKind::kReduce,
                   .stage = draft_.stage,
                   .micro_batch = draft_.program.streams_gradients ? micro_batch : kNone,
                   .bucket = b,
                   .blocks = bucket.blocks,
                   .merges = draft_.sums.leaves.back().merges,
                   .collective = by_group ? Collective::kReduceScatter : Collective::kAllReduce,
                   .group = by_group ? draft_.program.shards.group : draft_.groups.stage};
  reduce.bytes = BytesOf(draft_.input.types.reduced) * kBlockElements *
                 (by_group ? draft_.program.shards.PaddedOf(bucket.blocks.num_blocks())
                           : bucket.blocks.num_blocks());
  reduce.sends =
      SentBytes(reduce.collective, reduce.bytes,
                by_group ? draft_.program.shards.size : draft_.replicas(), draft_.num_roots());
  if (at.pass != kNone) {
    if (at.entry == kNone) {
      reduce.after = {at.pass};
    } else {
      reduce.at = at;
    }
  } else if (draft_.input.plan.overlap) {
    reduce.backward = last_backward_;
    reduce.first_parameter = bucket.first_parameter;
    reduce.end_parameter = bucket.end_parameter;
  } else {
    reduce.after = {last_backward_};
  }
  return reduce;
}

void GradientReductions::AddEarlier(int b, Action& reduce) const {
  // It adds to the last sum of its bucket. The head of the bucket behind is here, and that of this
  // one has been taken by then.
  for (const int other : {b, BucketBehind(draft_.program, b), BucketBefore(draft_.program, b)}) {
    if (other != kNone && last_reduce_[other] != kNone) {
      reduce.after.push_back(last_reduce_[other]);
    }
  }
}

void GradientReductions::Add(int b, int64_t micro_batch, Point at) {
  Action reduce = ActionOf(b, micro_batch, at);
  const bool by_group = reduce.collective == Collective::kReduceScatter;
  const bool is_streamed = draft_.program.streams_gradients;
  if (is_streamed) {
    reduce.place = place_[b];
    if (reduce.place == kNone) return;  // no gradient can come: its shard is cleared
    AddEarlier(b, reduce);
  }
  const int index = draft_.Add(std::move(reduce));
  added_.push_back(index);
  if (draft_.is_hybrid() && by_group && draft_.is_last(micro_batch)) to_replicate_.push_back(index);
  if (is_streamed) GiveBackAfter(b, index);
}

// Its memory is taken again two buckets later, so that it is free by then.
void GradientReductions::GiveBackAfter(int b, int reduce) {
  last_reduce_[b] = reduce;
  place_[b] = kNone;
  const auto give_back = [this](int done) {
    arena_.Give(draft_.program.actions[done].place, done);
  };
  if (leaving_ != kNone) give_back(leaving_);
  leaving_ = reduce;
  if (draft_.input.plan.overlap) return;
  give_back(reduce);
  leaving_ = kNone;
}

void GradientReductions::Replicate() {
  for (const int reduce : to_replicate_) {
    const int b = draft_.program.actions[reduce].bucket;
    const int64_t bytes =
        draft_.program.buckets[b].owned.num_elements() * BytesOf(draft_.input.types.reduced);
    if (bytes == 0) continue;
    const int n = draft_.replicas() / draft_.shard_ranks();
    added_.push_back(draft_.Add({.kind = ActionKind::kReplicate,
                                 .after = {reduce},
                                 .stage = draft_.stage,
                                 .bucket = b,
                                 .blocks = draft_.program.buckets[b].owned,
                                 .collective = Collective::kAllReduce,
                                 .group = draft_.groups.replicas,
                                 .bytes = bytes,
                                 .sends = SentBytes(Collective::kAllReduce, bytes, n, 1)}));
  }
  to_replicate_.clear();
}

void GradientReductions::Finish() {
  draft_.program.unreduced_blocks = arena_.size();
  for (Bucket& bucket : draft_.program.buckets) {
    if (bucket.head_elements > 0) bucket.head_place = draft_.program.unreduced_blocks++;
  }
}

}  // namespace muster::plan
