// Forward and backward passes of a program: when units are gathered and given up, and what travels
// between the stages of a pipeline.
#include <algorithm>
#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/plan/program_compiler.h"

namespace muster::plan {
std::vector<ProgramCompiler::Pass> ProgramCompiler::PassesInOrder() const {
  const int64_t m = plan_.accumulation;
  const int64_t warm_up = std::min<int64_t>(m, input_.mesh.stages - stage_);
  std::vector<Pass> passes;
  int64_t forward = 0;
  while (forward < warm_up) passes.push_back({.micro_batch = forward++});
  for (int64_t backward = 0; backward < m; ++backward) {
    passes.push_back({.micro_batch = backward, .is_backward = true});
    if (forward < m) passes.push_back({.micro_batch = forward++});
  }
  return passes;
}

void ProgramCompiler::PlanUses() {
  passes_ = PassesInOrder();
  if (!has_entries()) return;
  for (Pass& pass : passes_) {
    pass.first_use = uses_.size();
    // What the stage behind found for a borrowed parameter is written before anything else.
    if (pass.is_backward && HandsTiedBack(pass.micro_batch)) {
      for (const int unit : LentUnits()) AddUse(pass, unit);
    }
    for (const int unit : pass.is_backward ? info_.trace.backward : info_.trace.forward) {
      AddUse(pass, unit);
    }
    pass.end_use = uses_.size();
  }
  std::vector<int64_t> elements(layout_.units.size());
  for (size_t u = 0; u < elements.size(); ++u) {
    const int bucket = program_.bucket_of_unit[u];
    if (bucket != kNone && program_.gathered[bucket]) {
      elements[u] = layout_.units[u].num_elements();
    }
  }
  schedule_ = ScheduleUses(uses_, elements, plan_.gathering);
  program_.live_elements = schedule_.live_elements;
  unshard_.assign(layout_.units.size(), kNone);
  kept_.assign(layout_.units.size(), kNone);
  gradient_place_.assign(program_.buckets.size(), kNone);
}

void ProgramCompiler::AddUse(const Pass& pass, int unit) {
  if (program_.bucket_of_unit[unit] == kNone) return;  // of another stage
  if (uses_.size() > pass.first_use && uses_.back().unit == unit) return;
  uses_.push_back({.unit = unit, .micro_batch = pass.micro_batch, .is_backward = pass.is_backward});
}

std::vector<int> ProgramCompiler::LentUnits() const {
  std::vector<int> units;
  for (const StageInfo& other : input_.stages) {
    for (const int p : other.borrowed) {
      const int unit = input_.parameters[p].unit;
      if (program_.bucket_of_unit[unit] != kNone) units.push_back(unit);
    }
  }
  return units;
}

void ProgramCompiler::AddPasses() {
  for (size_t p = 0; p < passes_.size(); ++p) {
    const Pass& pass = passes_[p];
    if (p == 0 && !uses_.empty()) {
      for (const int unit : schedule_.steps[0].gather) AddUnshardOf(unit, {});
    }
    if (pass.is_backward) {
      AddBackward(pass);
    } else {
      AddForward(pass);
    }
  }
}

void ProgramCompiler::AddUses(const Pass& pass, int action) {
  if (!has_entries()) return;
  const bool reduces = pass.is_backward && (program_.streams_gradients || IsLast(pass));
  // Without overlap, whole gradients are reduced behind the pass, others before it goes on.
  const bool early = reduces && (plan_.overlap || program_.streams_gradients);
  for (size_t t = pass.first_use; t < pass.end_use; ++t) {
    const Point at = {.pass = action, .entry = static_cast<int>(t - pass.first_use)};
    const UseStep& step = schedule_.steps[t];
    const bool post = plan_.gathering.backward_prefetch == BackwardPrefetch::kPost;
    if (early && !post) ReduceWhatIsComplete(pass, t, at);
    if (t > pass.first_use) {
      for (const int unit : step.release) AddReshard(unit, t, at, kNone);
    }
    if (t > 0) {
      for (const int unit : step.gather) AddUnshardOf(unit, at);
    }
    if (early && post) ReduceWhatIsComplete(pass, t, at);
    Entry entry = {.unit = uses_[t].unit, .unshard = unshard_[uses_[t].unit]};
    if (pass.is_backward && program_.streams_gradients) BeginGradients(entry);
    if (early && !plan_.overlap && !reduced_.empty()) entry.waits.push_back(reduced_.back());
    program_.actions[action].entries.push_back(std::move(entry));
  }
  if (reduces) ReduceWhatIsComplete(pass, pass.end_use, {.pass = action, .entry = kNone});
  if (reduces && IsLast(pass)) Replicate();
  const bool ends = pass.end_use == uses_.size();
  for (const int unit : ends ? schedule_.release : schedule_.steps[pass.end_use].release) {
    if (unshard_[unit] != kNone) AddReshard(unit, pass.end_use, {}, action);
  }
}

void ProgramCompiler::AddUnshardOf(int unit, Point at) {
  const int b = program_.bucket_of_unit[unit];
  const muster::plan::Shards& from = kept_[unit] == kNone ? program_.shards : program_.secondary;
  Action action = {.kind = ActionKind::kUnshard,
                   .at = at,
                   .stage = stage_,
                   .bucket = b,
                   .blocks = program_.buckets[b].blocks,
                   .secondary = kept_[unit] != kNone,
                   .collective = Collective::kAllGather,
                   .group = from.group};
  if (kept_[unit] != kNone) action.after.push_back(kept_[unit]);
  const int64_t blocks = from.PaddedOf(action.blocks.num_blocks());
  action.place = gathered_.Take(blocks, action.after);
  action.bytes = blocks * kBlockElements * BytesOf(input_.types.parameters);
  action.sends = SentBytes(Collective::kAllGather, action.bytes, from.size, 1);
  unshard_[unit] = Add(std::move(action));
}

void ProgramCompiler::AddReshard(int unit, size_t t, Point at, int after_pass) {
  const int b = program_.bucket_of_unit[unit];
  const int unshard = std::exchange(unshard_[unit], kNone);
  Action action = {.kind = ActionKind::kReshard,
                   .after = {unshard},
                   .at = at,
                   .stage = stage_,
                   .bucket = b,
                   .blocks = program_.buckets[b].blocks,
                   .place = program_.actions[unshard].place,
                   .unshard = unshard};
  if (after_pass != kNone) action.after.push_back(after_pass);
  action.secondary = program_.secondary.size > 1 && kept_[unit] == kNone &&
                     std::any_of(uses_.begin() + static_cast<int64_t>(t), uses_.end(),
                                 [&](const UnitUse& use) { return use.unit == unit; });
  const bool keeps = action.secondary;
  const int index = Add(std::move(action));
  gathered_.Give(program_.actions[index].place, index);
  if (keeps) kept_[unit] = index;
}

void ProgramCompiler::BeginGradients(Entry& entry) {
  const int b = program_.bucket_of_unit[entry.unit];
  if (gradient_place_[b] != kNone) return;
  const int64_t blocks = program_.shards.PaddedOf(program_.buckets[b].blocks.num_blocks());
  entry.place = gradient_place_[b] = unreduced_.Take(blocks, entry.waits);
}

void ProgramCompiler::ReduceWhatIsComplete(const Pass& pass, size_t t, Point at) {
  for (size_t b = 0; b < program_.buckets.size(); ++b) {
    const bool comes =
        std::any_of(uses_.begin() + static_cast<int64_t>(t),
                    uses_.begin() + static_cast<int64_t>(pass.end_use), [&](const UnitUse& use) {
                      return program_.bucket_of_unit[use.unit] == static_cast<int>(b);
                    });
    if (comes || (b < is_reduced_.size() && is_reduced_[b])) continue;
    // Not used at all: with the end of the pass.
    const bool used = std::any_of(uses_.begin() + static_cast<int64_t>(pass.first_use),
                                  uses_.begin() + static_cast<int64_t>(t), [&](const UnitUse& use) {
                                    return program_.bucket_of_unit[use.unit] == static_cast<int>(b);
                                  });
    if (!used && at.entry != kNone) continue;
    is_reduced_.resize(program_.buckets.size());
    is_reduced_[b] = true;
    AddReduce(static_cast<int>(b), pass.micro_batch, at);
  }
  if (at.entry == kNone) is_reduced_.clear();
}

Action ProgramCompiler::Transfer(ActionKind kind, Payload payload, int stage, int64_t micro_batch,
                                 int64_t bytes) const {
  Action action = {.kind = kind,
                   .stage = kind == ActionKind::kSend ? stage_ : stage,
                   .micro_batch = micro_batch,
                   .collective = Collective::kTransfer,
                   .peer = RankAt(stage),
                   .payload = payload,
                   .bytes = bytes};
  // What is received stays for its pass; what is passed on is the tape's.
  if (kind == ActionKind::kRecv) action.keeps_bytes = bytes;
  if (kind == ActionKind::kSend) action.sends = bytes;
  if (kind == ActionKind::kSend && payload != Payload::kActivation) action.keeps_bytes = bytes;
  return action;
}

void ProgramCompiler::AddForward(const Pass& pass) {
  const int64_t micro_batch = pass.micro_batch;
  Action forward = {.kind = ActionKind::kForward,
                    .stage = stage_,
                    .micro_batch = micro_batch,
                    .keeps_bytes = info_.trace.kept_bytes,
                    .works_in_bytes = info_.trace.peak_bytes - info_.trace.kept_bytes};
  if (stage_ > 0) {
    forward.after.push_back(Add(Transfer(ActionKind::kRecv, Payload::kActivation, stage_ - 1,
                                         micro_batch, info_.received_bytes)));
  }
  const int at = Add(std::move(forward));
  last_forward_ = at;
  AddUses(pass, at);
  if (!is_last_stage()) {
    Action send = Transfer(ActionKind::kSend, Payload::kActivation, stage_ + 1, micro_batch,
                           input_.stages[stage_ + 1].received_bytes);
    send.after = {at};
    passed_on_.push_back(Add(std::move(send)));
  } else if (micro_batch + 1 == plan_.accumulation) {
    AddLoss(at);
  }
}

void ProgramCompiler::AddLoss(int last_forward) {
  const int64_t n = replicas();
  if (n == 1) return;
  Action loss = {.kind = ActionKind::kLoss,
                 .after = {last_forward},
                 .collective = Collective::kAllReduce,
                 .group = groups_.stage,
                 .bytes = kLossBytes};
  loss.sends = program_.ordered ? SentBytes(Collective::kAllReduce, kLossBytes, n, num_roots())
                                : SentOfSmall(kLossBytes, n);
  loss_ = Add(std::move(loss));
}

void ProgramCompiler::AddBackward(const Pass& pass) {
  const int64_t micro_batch = pass.micro_batch;
  const OrderedLeaf& leaf = sums_.leaves[micro_batch];
  const bool is_last = micro_batch + 1 == plan_.accumulation;
  Action backward = {.kind = ActionKind::kBackward,
                     .stage = stage_,
                     .micro_batch = micro_batch,
                     .slot = program_.streams_gradients ? kNone : leaf.slot,
                     .frees_bytes = info_.trace.kept_bytes,
                     .works_in_bytes = info_.trace.peak_bytes - info_.trace.kept_bytes};
  // Those of the last micro-batch are added bucket by bucket, where there is something to reduce.
  if (!is_last || replicas() == 1) backward.merges = leaf.merges;
  if (!is_last_stage()) {
    backward.after.push_back(Add(Transfer(ActionKind::kRecv, Payload::kGradient, stage_ + 1,
                                          micro_batch, input_.stages[stage_ + 1].received_bytes)));
  }
  for (int later = stage_ + 1; later < input_.mesh.stages; ++later) {
    const int64_t bytes = BorrowedBytes(later, Payload::kTied);
    if (bytes > 0 && HandsTiedBack(micro_batch)) {
      backward.after.push_back(
          Add(Transfer(ActionKind::kRecv, Payload::kTied, later, micro_batch, bytes)));
    }
  }
  if (stage_ > 0) backward.frees_bytes += info_.received_bytes;
  for (const int received : backward.after) {
    backward.frees_bytes += program_.actions[received].keeps_bytes;
  }
  // What was sent has left by now, so that its memory is there again.
  if (!is_last_stage()) backward.after.push_back(passed_on_[micro_batch]);
  for (const int sent : handed_back_) {
    const int64_t bytes = program_.actions[sent].keeps_bytes;
    backward.after.push_back(sent);
    backward.works_in_bytes -= bytes;
    backward.frees_bytes += bytes;
  }
  handed_back_.clear();
  last_backward_ = Add(std::move(backward));
  AddUses(pass, last_backward_);
  if (stage_ > 0) {
    Action send = Transfer(ActionKind::kSend, Payload::kGradient, stage_ - 1, micro_batch,
                           info_.received_bytes);
    send.after = {last_backward_};
    handed_back_.push_back(Add(std::move(send)));
  }
  if (stage_ > 0 && BorrowedElements(stage_) > 0 && HandsTiedBack(micro_batch)) {
    Action send = Transfer(ActionKind::kSend, Payload::kTied, OwnerOfBorrowed(stage_), micro_batch,
                           BorrowedBytes(stage_, Payload::kTied));
    send.after = {last_backward_};
    handed_back_.push_back(Add(std::move(send)));
  }
}

int64_t ProgramCompiler::BorrowedElements(int stage) const {
  int64_t elements = 0;
  for (const int p : input_.stages[stage].borrowed) {
    const bool concerns = stage == stage_ || StageOf(p) == stage_;
    if (concerns) elements += input_.parameters[p].num_elements();
  }
  return elements;
}

int64_t ProgramCompiler::BorrowedBytes(int stage, Payload payload) const {
  const bool is_value = payload == Payload::kValue;
  return BorrowedElements(stage) *
         BytesOf(is_value ? input_.types.parameters : input_.types.gradients);
}

int ProgramCompiler::StageOf(int parameter) const {
  const int64_t block = layout_.offsets[parameter] / kBlockElements;
  int stage = 0;
  while (input_.stages[stage].blocks.end <= block) ++stage;
  return stage;
}

int ProgramCompiler::OwnerOfBorrowed(int stage) const {
  const int owner = StageOf(input_.stages[stage].borrowed.front());
  for (const int p : input_.stages[stage].borrowed) MUSTER_CHECK(StageOf(p) == owner);
  return owner;
}

}  // namespace muster::plan
