#include "worker_runtime/plan/program_compiler.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace muster::plan {

Program ProgramCompiler::Run() {
  AddPasses();
  if (draft_.input.mesh.places() > 1) AddShareLoss();
  AddUpdates(AddNorm());
  gathers_.Finish();
  reductions_.Finish();
  draft_.Finish();
  return std::move(draft_.program);
}

void ProgramCompiler::AddPasses() {
  for (const PlannedPass& pass : planned_.passes) {
    draft_.stage = pass.order.pass.stage;
    if (&pass == &planned_.passes.front()) gathers_.Begin();
    handovers_.AddReceives(pass);
    if (pass.is_forward()) {
      AddForward(pass);
    } else {
      AddBackward(pass);
    }
    if (pass.writes_gradients() && draft_.is_last(pass.micro_batch())) reductions_.ReduceStage();
  }
}

std::vector<Entry>& ProgramCompiler::EntriesOf(int pass) {
  return std::get<Pass>(draft_.program.actions[pass].body).entries;
}

void ProgramCompiler::AddSum(const PlannedPass& pass, const PlannedSum& sum, int action) {
  const Point at = {.pass = action, .entry = static_cast<int>(EntriesOf(action).size())};
  const bool is_last = pass.writes_gradients() && draft_.is_last(pass.micro_batch());
  Entry entry = {.unit = kNone};
  if (is_last && draft_.input.plan.overlap && !draft_.has_entries()) {
    entry.written = reductions_.ReduceFinished(sum.finished, at);
  }
  entry.combine = draft_.Add(
      {.body = Combine{.of = pass.order.pass,
                       .unit = sum.unit,
                       .exchange = {.group = draft_.program.GroupAlong({Dimension::kTensor}),
                                    .bytes = sum.bytes}},
       .at = at});
  entry.waits = {entry.combine};
  EntriesOf(action).push_back(std::move(entry));
}

void ProgramCompiler::AddUses(const PlannedPass& pass, int action) {
  auto next_sum = pass.sums.begin();
  const auto add_sums_before = [&](size_t use) {
    for (; next_sum != pass.sums.end() && next_sum->before <= use; ++next_sum) {
      AddSum(pass, *next_sum, action);
    }
  };
  if (!draft_.has_entries()) return add_sums_before(0);
  const bool overlaps = draft_.input.plan.overlap;
  const bool is_streamed = draft_.program.streams_gradients;
  const bool is_last = draft_.is_last(pass.micro_batch());
  const bool reduces = pass.writes_gradients() && (is_streamed || is_last);
  // Without overlap, whole gradients are reduced behind the pass, others before it goes on.
  const bool early = reduces && (overlaps || is_streamed);
  const bool post = draft_.input.plan.gathering.backward_prefetch == BackwardPrefetch::kPost;
  for (size_t t = pass.first_use; t < pass.end_use; ++t) {
    add_sums_before(t);
    const Point at = {.pass = action, .entry = static_cast<int>(EntriesOf(action).size())};
    if (early && !post) reductions_.ReduceWhatIsComplete(pass, t, at);
    if (t > pass.first_use) gathers_.ReleaseBefore(t, at);
    gathers_.GatherBefore(t, at);
    if (early && post) reductions_.ReduceWhatIsComplete(pass, t, at);
    Entry entry = {.unit = planned_.uses[t].unit};
    gathers_.AddTo(entry);
    if (pass.writes_gradients() && is_streamed) reductions_.Begin(entry);
    const std::vector<int>& reduced = reductions_.added();
    if (early && !overlaps && !reduced.empty()) entry.waits.push_back(reduced.back());
    EntriesOf(action).push_back(std::move(entry));
  }
  add_sums_before(pass.end_use);
  if (reduces) {
    reductions_.ReduceWhatIsComplete(pass, pass.end_use, {.pass = action, .entry = kNone});
  }
  if (reduces && is_last) reductions_.ReplicateReduced();
  gathers_.ReleaseAfter(action, pass.end_use);
}

void ProgramCompiler::AddForward(const PlannedPass& pass) {
  Action forward = {
      .body = Pass{.of = pass.order.pass},
      .keeps_bytes = draft_.info().trace.kept_bytes,
      .works_in_bytes = draft_.info().trace.peak_bytes - draft_.info().trace.kept_bytes};
  handovers_.AddNeeds(pass, forward);
  last_forward_ = draft_.Add(std::move(forward));
  AddUses(pass, last_forward_);
  handovers_.AddSends(pass, last_forward_);
  if (draft_.is_last_stage() && draft_.is_last(pass.micro_batch())) AddLoss(last_forward_);
}

void ProgramCompiler::AddLoss(int last_forward) {
  if (draft_.replicas() == 1) return;
  loss_ = draft_.Add({.body = SumLoss{{.group = draft_.groups.sums, .bytes = kLossBytes}},
                      .after = {last_forward}});
}

void ProgramCompiler::AddBackward(const PlannedPass& pass) {
  const OrderedLeaf& leaf = draft_.program.sums.leaves[pass.micro_batch()];
  const bool writes = pass.writes_gradients();
  Pass body = {.of = pass.order.pass};
  if (writes && !draft_.program.streams_gradients) body.slot = leaf.slot;
  // Those of the last micro-batch are added bucket by bucket, where there is something to reduce.
  const bool is_last = draft_.is_last(pass.micro_batch());
  if (writes && (!is_last || draft_.replicas() == 1)) body.merges = leaf.merges;
  Action backward = {
      .body = std::move(body),
      .works_in_bytes = draft_.info().trace.peak_bytes - draft_.info().trace.kept_bytes};
  handovers_.AddNeeds(pass, backward);
  CountMemory(pass, backward);
  if (pass.kind() != PassKind::kWeightGradient) handovers_.AwaitSent(pass, backward);
  if (writes) handovers_.KeepTied(pass, backward);
  const int index = draft_.Add(std::move(backward));
  if (writes) reductions_.OnBackward(index);
  AddUses(pass, index);
  handovers_.AddSends(pass, index);
}

void ProgramCompiler::CountMemory(const PlannedPass& pass, Action& backward) const {
  const UseTrace& trace = draft_.info().trace;
  const int64_t for_weights = trace.weights_bytes == 0 ? trace.kept_bytes : trace.weights_bytes;
  if (!pass.writes_gradients()) {
    backward.keeps_bytes = std::max<int64_t>(0, for_weights - trace.kept_bytes);
    backward.frees_bytes = std::max<int64_t>(0, trace.kept_bytes - for_weights);
  } else {
    backward.frees_bytes = pass.kind() == PassKind::kBackward ? trace.kept_bytes : for_weights;
    const bool was_received = draft_.stage > 0 && draft_.PlaceOf(draft_.stage - 1) != draft_.place;
    if (was_received) backward.frees_bytes += draft_.info().received_bytes;
  }
  for (const int received : backward.after) {
    backward.frees_bytes += draft_.program.actions[received].keeps_bytes;
  }
}

void ProgramCompiler::AddShareLoss() {
  loss_ = draft_.Add({.body = ShareLoss{.giver = GiverOfLoss(), .exchange = {.bytes = kLossBytes}},
                      .after = {loss_ == kNone ? last_forward_ : loss_}});
}

int ProgramCompiler::GiverOfLoss() const {
  const int last = static_cast<int>(draft_.input.stages.size()) - 1;
  const Mesh& mesh = draft_.input.mesh;
  return mesh.Moved(mesh.size() - 1, Dimension::kPipeline, draft_.PlaceOf(last));
}

bool ProgramCompiler::AddsSquares() const {
  const Mesh& mesh = draft_.input.mesh;
  return mesh.size() > 1 && (draft_.is_sharded() || mesh.places() > 1 || mesh.tensor_ranks() > 1);
}

int ProgramCompiler::AddNorm() {
  Action norm = {.body = Norm{.is_shared = AddsSquares()}, .after = reductions_.added()};
  norm.after.push_back(reductions_.last_backward());
  int ready = draft_.Add(std::move(norm));
  if (AddsSquares()) {
    // The bits of an ordered norm are those of one sum over all blocks, so each of them travels.
    const int64_t parts = draft_.program.ordered ? NumSquares(draft_.program) : 1;
    ready = draft_.Add({.body = SumSquares{{.bytes = parts * kPartialBytes}}, .after = {ready}});
  }
  Action clip = {.body = Clip{}, .after = {ready}};
  if (loss_ != kNone) clip.after.push_back(loss_);
  return draft_.Add(std::move(clip));
}

void ProgramCompiler::AddUpdates(int clip) {
  std::vector<int> updates;
  for (size_t b = 0; b < LearnedBuckets(draft_.program).size(); ++b) {
    const int bucket = static_cast<int>(b);
    updates.push_back(draft_.Add({.body = Update{.bucket = bucket}, .after = {clip}}));
    if (draft_.is_sharded() && !draft_.program.buckets[b].gathered) {
      updates.back() = draft_.AddUnshard({.bucket = bucket}, {updates.back()});
    }
  }
  handovers_.AddTiedValues(updates, reductions_.last_backward());
}

}  // namespace muster::plan
