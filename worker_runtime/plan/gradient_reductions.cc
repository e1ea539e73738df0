#include "worker_runtime/plan/gradient_reductions.h"

#include <algorithm>
#include <utility>

namespace muster::plan {

GradientReductions::GradientReductions(ProgramDraft& draft, const std::vector<UnitUse>& uses)
    : draft_(draft),
      uses_(uses),
      place_(draft.program.buckets.size(), kNone),
      is_reduced_(LearnedBuckets(draft.program).size()),
      last_use_(draft.program.buckets.size()),
      last_reduce_(draft.program.buckets.size(), kNone) {}

void GradientReductions::Begin(Entry& entry) {
  const int b = GradientBucketOf(draft_.program, entry.unit);
  if (b == kNone || place_[b] != kNone) return;
  entry.place = place_[b] = arena_.Take(draft_.BlocksOfGradients(b), entry.waits);
}

void GradientReductions::ReduceWhatIsComplete(const PlannedPass& pass, size_t use, Point at) {
  const auto reduce = [&](int b) {
    if (!draft_.IsOfStage(b) || is_reduced_[b]) return;
    is_reduced_[b] = true;
    Add(b, pass.micro_batch(), at);
  };
  if (at.entry != kNone) {
    if (use == pass.first_use) return FindLastUses(pass);
    const int b = GradientBucketOf(draft_.program, uses_[use - 1].unit);
    if (b != kNone && last_use_[b] == use - 1) reduce(b);
    return;
  }
  // What is left has been used last, or not at all.
  for (size_t b = 0; b < is_reduced_.size(); ++b) reduce(static_cast<int>(b));
  is_reduced_.assign(is_reduced_.size(), false);
}

void GradientReductions::FindLastUses(const PlannedPass& pass) {
  for (size_t use = pass.first_use; use < pass.end_use; ++use) {
    const int b = GradientBucketOf(draft_.program, uses_[use].unit);
    if (b != kNone) last_use_[b] = use;
  }
}

std::vector<int> GradientReductions::ReduceFinished(int finished, Point at) {
  std::vector<int> reduced;
  if (draft_.replicas() == 1) return reduced;
  if (completed_stage_ != draft_.stage) FindCompleted();
  for (size_t b = 0; b < is_reduced_.size(); ++b) {
    if (!draft_.IsOfStage(b) || is_reduced_[b]) continue;
    if (completed_[b] >= finished) break;
    is_reduced_[b] = true;
    Add(static_cast<int>(b), draft_.input.plan.accumulation - 1, at);
    reduced.push_back(static_cast<int>(b));
  }
  return reduced;
}

void GradientReductions::FindCompleted() {
  const std::vector<int> readiness =
      ReadinessOf(draft_.info().trace, static_cast<int>(draft_.input.parameters.size()));
  completed_.clear();
  for (const Bucket& bucket : LearnedBuckets(draft_.program)) {
    int last = 0;
    for (int p = bucket.first_parameter; p < bucket.end_parameter; ++p) {
      last = std::max(last, readiness[p]);
    }
    completed_.push_back(last);
  }
  completed_stage_ = draft_.stage;
}

void GradientReductions::ReduceStage() {
  if (draft_.replicas() == 1 || draft_.has_entries()) return;
  for (size_t b = 0; b < is_reduced_.size(); ++b) {
    if (!draft_.IsOfStage(b) || is_reduced_[b]) continue;
    Add(static_cast<int>(b), draft_.input.plan.accumulation - 1, {});
  }
  is_reduced_.assign(is_reduced_.size(), false);
  ReplicateReduced();
}

Action GradientReductions::ActionOf(int b, int64_t micro_batch, Point at) const {
  const Bucket& bucket = draft_.program.buckets[b];
  const bool by_group = draft_.AddsByGroup();
  Reduce reduce = {
      .bucket = b,
      .merges = draft_.program.sums.leaves.back().merges,
      .exchange = {.collective = by_group ? Collective::kReduceScatter : Collective::kAllReduce,
                   .group = by_group ? bucket.groups.shards.group : bucket.groups.sums,
                   .bytes = BytesOf(draft_.input.types.reduced) * kBlockElements *
                            (by_group ? bucket.padded_blocks() : bucket.blocks.num_blocks())}};
  if (draft_.program.streams_gradients) {
    reduce.stage = draft_.stage;
    reduce.micro_batch = micro_batch;
    reduce.place = place_[b];
  }
  Action action;
  if (at.pass != kNone && at.entry != kNone) {
    action.at = at;
    if (!draft_.has_entries()) reduce.backward = at.pass;
  } else if (at.pass != kNone) {
    action.after = {at.pass};
  } else if (draft_.input.plan.overlap) {
    reduce.backward = last_backward_;
  } else {
    action.after = {last_backward_};
  }
  action.body = std::move(reduce);
  return action;
}

void GradientReductions::Add(int b, int64_t micro_batch, Point at) {
  const bool is_streamed = draft_.program.streams_gradients;
  if (is_streamed && place_[b] == kNone) return;  // no gradient can come: its shard is cleared
  Action reduce = ActionOf(b, micro_batch, at);
  // It adds to the last sum of its bucket.
  if (is_streamed && last_reduce_[b] != kNone) reduce.after.push_back(last_reduce_[b]);
  const int index = draft_.Add(std::move(reduce));
  added_.push_back(index);
  const bool is_replicated = draft_.is_hybrid() && draft_.AddsByGroup();
  if (is_replicated && draft_.is_last(micro_batch)) to_replicate_.push_back(index);
  if (is_streamed) GiveBackAfter(b, index);
}

// Its memory is taken again two buckets later, so that it is free by then.
void GradientReductions::GiveBackAfter(int b, int reduce) {
  last_reduce_[b] = reduce;
  place_[b] = kNone;
  const auto give_back = [this](int done) {
    arena_.Give(draft_.program.actions[done].As<Reduce>().place, done);
  };
  if (leaving_ != kNone) give_back(leaving_);
  leaving_ = reduce;
  if (draft_.input.plan.overlap) return;
  give_back(reduce);
  leaving_ = kNone;
}

void GradientReductions::ReplicateReduced() {
  for (const int reduce : to_replicate_) {
    const int b = draft_.program.actions[reduce].As<Reduce>().bucket;
    const Bucket& bucket = draft_.program.buckets[b];
    const int64_t bytes = bucket.owned.num_elements() * BytesOf(draft_.input.types.reduced);
    if (bytes == 0) continue;
    const Exchange exchange = {.group = bucket.groups.copies, .bytes = bytes};
    added_.push_back(
        draft_.Add({.body = Replicate{.bucket = b, .exchange = exchange}, .after = {reduce}}));
  }
  to_replicate_.clear();
}

void GradientReductions::Finish() { draft_.program.unreduced_blocks = arena_.size(); }

}  // namespace muster::plan
