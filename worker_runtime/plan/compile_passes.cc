// Forward and backward passes of a program: when units are gathered and given up, and what travels
// between the stages of a pipeline.
#include <algorithm>
#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/plan/program_compiler.h"

namespace muster::plan {
std::vector<TiedStages> ProgramCompiler::Tied() const {
  std::vector<TiedStages> tied;
  for (int borrower = 0; borrower < static_cast<int>(input_.stages.size()); ++borrower) {
    for (const int p : input_.stages[borrower].borrowed) {
      if (input_.parameters[p].frozen) continue;
      const TiedStages one = {
          .borrower = borrower, .lender = StageOf(p), .first_micro_batch = FirstTied()};
      const bool is_first = tied.empty() || tied.back().borrower != borrower;
      MUSTER_CHECK(is_first || tied.back().lender == one.lender);
      if (is_first) tied.push_back(one);
    }
  }
  return tied;
}

void ProgramCompiler::PlanUses() {
  for (PassOfRank& order : PassesOf(*input_.schedule, Tied(), place_)) {
    passes_.push_back({.order = std::move(order)});
  }
  if (!has_entries()) return;
  for (Pass& pass : passes_) {
    stage_ = pass.order.pass.stage;
    pass.first_use = uses_.size();
    // What the stage behind found for a borrowed parameter is written before anything else.
    if (pass.writes_gradients() && pass.micro_batch() >= FirstTied()) {
      for (const int unit : LentUnits()) AddUse(pass, unit);
    }
    if (EntersBuckets()) {
      AddUsesOfBuckets(pass);
    } else {
      for (const int unit : UsesOf(pass)) AddUse(pass, unit);
    }
    pass.end_use = uses_.size();
  }
  std::vector<int64_t> elements(std::max(layout_.units.size(), program_.buckets.size()));
  for (size_t u = 0; u < layout_.units.size(); ++u) {
    for (const int b : BucketsOfUnit(program_, static_cast<int>(u))) {
      const Bucket& bucket = program_.buckets[b];
      if (!bucket.gathered) continue;
      elements[u] += (bucket.frozen ? layout_.frozen_units : layout_.units)[u].num_elements();
    }
  }
  schedule_ = ScheduleUses(uses_, elements, plan_.gathering);
  program_.live_elements = schedule_.live_elements;
  gathering_.resize(program_.buckets.size());
  gradient_place_.assign(program_.buckets.size(), kNone);
}

const std::vector<int>& ProgramCompiler::UsesOf(const Pass& pass) const {
  const UseTrace& trace = info().trace;
  if (pass.is_forward()) return trace.forward;
  return pass.kind() == PassKind::kWeightGradient ? trace.weights : trace.backward;
}

void ProgramCompiler::AddUse(const Pass& pass, int unit) {
  const bool is_own = info().blocks.Overlaps(layout_.units[unit]) ||
                      info().frozen_blocks.Overlaps(layout_.frozen_units[unit]);
  if (!is_own) return;  // of another stage
  if (uses_.size() > pass.first_use && uses_.back().unit == unit) return;
  uses_.push_back(
      {.unit = unit, .micro_batch = pass.micro_batch(), .is_backward = !pass.is_forward()});
}

// A forward pass has nothing to wait for.
void ProgramCompiler::AddUsesOfBuckets(const Pass& pass) {
  if (pass.is_forward()) return;
  for (const BackwardUse& use : info().trace.backward_uses) {
    const int bucket = UseOf(program_, use.parameter, kNone);
    if (uses_.size() > pass.first_use && uses_.back().unit == bucket) continue;
    uses_.push_back({.unit = bucket, .micro_batch = pass.micro_batch(), .is_backward = true});
  }
}

std::vector<int> ProgramCompiler::LentUnits() const {
  std::vector<int> units;
  for (const StageInfo& other : input_.stages) {
    for (const int p : other.borrowed) {
      const ParameterInfo& parameter = input_.parameters[p];
      if (!parameter.frozen && StageOf(p) == stage_) units.push_back(parameter.unit);
    }
  }
  return units;
}

void ProgramCompiler::AddPasses() {
  for (size_t p = 0; p < passes_.size(); ++p) {
    const Pass& pass = passes_[p];
    stage_ = pass.order.pass.stage;
    if (p == 0 && !uses_.empty()) {
      for (const int unit : schedule_.steps[0].gather) AddUnshardsOf(unit, {});
    }
    AddReceives(pass);
    if (pass.is_forward()) {
      AddForward(pass);
    } else {
      AddBackward(pass);
    }
    if (pass.writes_gradients() && IsLast(pass)) ReduceStage();
  }
}

void ProgramCompiler::AddUses(const Pass& pass, int action) {
  if (!has_entries()) return;
  const bool reduces = pass.writes_gradients() && (program_.streams_gradients || IsLast(pass));
  // Without overlap, whole gradients are reduced behind the pass, others before it goes on.
  const bool early = reduces && (plan_.overlap || program_.streams_gradients);
  for (size_t t = pass.first_use; t < pass.end_use; ++t) {
    const Point at = {.pass = action, .entry = static_cast<int>(t - pass.first_use)};
    const UseStep& step = schedule_.steps[t];
    const bool post = plan_.gathering.backward_prefetch == BackwardPrefetch::kPost;
    if (early && !post) ReduceWhatIsComplete(pass, t, at);
    if (t > pass.first_use) {
      for (const int unit : step.release) AddReshardsOf(unit, t, at, kNone);
    }
    if (t > 0) {
      for (const int unit : step.gather) AddUnshardsOf(unit, at);
    }
    if (early && post) ReduceWhatIsComplete(pass, t, at);
    Entry entry = {.unit = uses_[t].unit};
    for (const int b : BucketsOfUse(program_, entry.unit)) {
      if (gathering_[b].unshard != kNone) entry.unshards.push_back(gathering_[b].unshard);
    }
    if (pass.writes_gradients() && program_.streams_gradients) BeginGradients(entry);
    if (early && !plan_.overlap && !reduced_.empty()) entry.waits.push_back(reduced_.back());
    program_.actions[action].entries.push_back(std::move(entry));
  }
  if (reduces) ReduceWhatIsComplete(pass, pass.end_use, {.pass = action, .entry = kNone});
  if (reduces && IsLast(pass)) Replicate();
  const bool ends = pass.end_use == uses_.size();
  for (const int unit : ends ? schedule_.release : schedule_.steps[pass.end_use].release) {
    AddReshardsOf(unit, pass.end_use, {}, action);
  }
}

void ProgramCompiler::AddUnshardsOf(int unit, Point at) {
  for (const int b : BucketsOfUnit(program_, unit)) {
    if (program_.buckets[b].gathered) AddUnshardOf(b, at);
  }
}

void ProgramCompiler::AddUnshardOf(int b, Point at) {
  const int kept = gathering_[b].kept;
  const muster::plan::Shards& from = kept == kNone ? program_.shards : program_.secondary;
  Action action = {.kind = ActionKind::kUnshard,
                   .at = at,
                   .stage = stage_,
                   .bucket = b,
                   .blocks = program_.buckets[b].blocks,
                   .secondary = kept != kNone,
                   .collective = Collective::kAllGather,
                   .group = from.group};
  if (kept != kNone) action.after.push_back(kept);
  const int64_t blocks = from.PaddedOf(action.blocks.num_blocks());
  action.place = GatherArenaOf(b).Take(blocks, action.after);
  action.bytes = blocks * kBlockElements * BytesOf(input_.types.parameters);
  action.sends = SentBytes(Collective::kAllGather, action.bytes, from.size, 1);
  gathering_[b].unshard = Add(std::move(action));
}

void ProgramCompiler::AddReshardsOf(int unit, size_t t, Point at, int after_pass) {
  const bool comes_again = std::any_of(uses_.begin() + static_cast<int64_t>(t), uses_.end(),
                                       [&](const UnitUse& use) { return use.unit == unit; });
  for (const int b : BucketsOfUnit(program_, unit)) {
    if (gathering_[b].unshard != kNone) AddReshard(b, comes_again, at, after_pass);
  }
}

void ProgramCompiler::AddReshard(int b, bool comes_again, Point at, int after_pass) {
  const int unshard = std::exchange(gathering_[b].unshard, kNone);
  Action action = {.kind = ActionKind::kReshard,
                   .after = {unshard},
                   .at = at,
                   .stage = stage_,
                   .bucket = b,
                   .blocks = program_.buckets[b].blocks,
                   .place = program_.actions[unshard].place,
                   .unshard = unshard};
  if (after_pass != kNone) action.after.push_back(after_pass);
  action.secondary = program_.secondary.size > 1 && gathering_[b].kept == kNone && comes_again;
  const bool keeps = action.secondary;
  const int index = Add(std::move(action));
  GatherArenaOf(b).Give(program_.actions[index].place, index);
  if (keeps) gathering_[b].kept = index;
}

void ProgramCompiler::BeginGradients(Entry& entry) {
  const int b = GradientBucketOf(program_, entry.unit);
  if (b == kNone || gradient_place_[b] != kNone) return;
  entry.place = gradient_place_[b] = unreduced_.Take(BlocksOfGradients(b), entry.waits);
}

// Each takes as much as the largest that is up to twice as large, so that one fits where another
// was.
int64_t ProgramCompiler::BlocksOfGradients(int b) const {
  const auto blocks_of = [&](const Bucket& bucket) {
    return HeadBlocks(bucket) + program_.shards.PaddedOf(bucket.blocks.num_blocks());
  };
  const int64_t own = blocks_of(program_.buckets[b]);
  int64_t most = own;
  for (const Bucket& other : LearnedBuckets(program_)) {
    const int64_t blocks = blocks_of(other);
    if (other.entered && blocks <= 2 * own) most = std::max(most, blocks);
  }
  return most;
}

void ProgramCompiler::ReduceWhatIsComplete(const Pass& pass, size_t t, Point at) {
  for (size_t b = 0; b < LearnedBuckets(program_).size(); ++b) {
    const bool comes =
        std::any_of(uses_.begin() + static_cast<int64_t>(t),
                    uses_.begin() + static_cast<int64_t>(pass.end_use), [&](const UnitUse& use) {
                      return GradientBucketOf(program_, use.unit) == static_cast<int>(b);
                    });
    if (comes || !IsOfStage(b) || (b < is_reduced_.size() && is_reduced_[b])) continue;
    // Not used at all: with the end of the pass.
    const bool used =
        std::any_of(uses_.begin() + static_cast<int64_t>(pass.first_use),
                    uses_.begin() + static_cast<int64_t>(t), [&](const UnitUse& use) {
                      return GradientBucketOf(program_, use.unit) == static_cast<int>(b);
                    });
    if (!used && at.entry != kNone) continue;
    is_reduced_.resize(program_.buckets.size());
    is_reduced_[b] = true;
    AddReduce(static_cast<int>(b), pass.micro_batch(), at);
  }
  if (at.entry == kNone) is_reduced_.clear();
}

Action ProgramCompiler::Transfer(ActionKind kind, const HandedBy& with) const {
  const Handed& what = with.what;
  const int64_t bytes = BytesHanded(what);
  Action action = {.kind = kind,
                   .stage = what.stage,
                   .micro_batch = what.micro_batch,
                   .collective = Collective::kTransfer,
                   .peer = RankAt(with.place),
                   .payload = what.payload,
                   .bytes = bytes};
  // What is received stays for its pass; what is passed on is the tape's.
  if (kind == ActionKind::kRecv) action.keeps_bytes = bytes;
  if (kind == ActionKind::kSend) action.sends = bytes;
  if (kind == ActionKind::kSend && what.payload != Payload::kActivation) action.keeps_bytes = bytes;
  return action;
}

int64_t ProgramCompiler::BytesHanded(const Handed& what) const {
  switch (what.payload) {
    case Payload::kActivation:
      return input_.stages[what.stage + 1].received_bytes;
    case Payload::kGradient:
      return input_.stages[what.stage].received_bytes;
    default:
      return BorrowedElements(what.stage) * BytesOf(input_.types.gradients);
  }
}

void ProgramCompiler::AddReceives(const Pass& pass) {
  for (const HandedBy& from : pass.order.receives) {
    received_[from.what] = Add(Transfer(ActionKind::kRecv, from));
  }
}

void ProgramCompiler::AddSends(const Pass& pass, int action) {
  OfStage& own = of_stage_[stage_];
  for (const HandedBy& to : pass.order.sends) {
    Action send = Transfer(ActionKind::kSend, to);
    send.after = {action};
    const int index = Add(std::move(send));
    if (to.what.payload == Payload::kActivation) {
      own.passed_on[pass.micro_batch()] = index;
    } else {
      own.handed_back.push_back(index);
    }
  }
}

void ProgramCompiler::AddForward(const Pass& pass) {
  Action forward = {.kind = ActionKind::kForward,
                    .stage = stage_,
                    .micro_batch = pass.micro_batch(),
                    .keeps_bytes = info().trace.kept_bytes,
                    .works_in_bytes = info().trace.peak_bytes - info().trace.kept_bytes};
  for (const Handed& needed : pass.order.needs) forward.after.push_back(received_.at(needed));
  last_forward_ = Add(std::move(forward));
  AddUses(pass, last_forward_);
  AddSends(pass, last_forward_);
  if (is_last_stage() && IsLast(pass)) AddLoss(last_forward_);
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
  const OrderedLeaf& leaf = sums_.leaves[pass.micro_batch()];
  OfStage& own = of_stage_[stage_];
  const bool writes = pass.writes_gradients();
  const bool hands_back = pass.kind() != PassKind::kWeightGradient;
  Action backward = {.kind = !writes       ? ActionKind::kBackwardInput
                             : !hands_back ? ActionKind::kBackwardWeight
                                           : ActionKind::kBackward,
                     .stage = stage_,
                     .micro_batch = pass.micro_batch(),
                     .slot = program_.streams_gradients || !writes ? kNone : leaf.slot,
                     .works_in_bytes = info().trace.peak_bytes - info().trace.kept_bytes};
  // Those of the last micro-batch are added bucket by bucket, where there is something to reduce.
  if (writes && (!IsLast(pass) || replicas() == 1)) backward.merges = leaf.merges;
  for (const Handed& needed : pass.order.needs) backward.after.push_back(received_.at(needed));
  const UseTrace& trace = info().trace;
  const int64_t for_weights = trace.weights_bytes == 0 ? trace.kept_bytes : trace.weights_bytes;
  if (!writes) {
    backward.keeps_bytes = std::max<int64_t>(0, for_weights - trace.kept_bytes);
    backward.frees_bytes = std::max<int64_t>(0, trace.kept_bytes - for_weights);
  } else {
    backward.frees_bytes = hands_back ? trace.kept_bytes : for_weights;
    const bool was_received = stage_ > 0 && PlaceOf(stage_ - 1) != place_;
    if (was_received) backward.frees_bytes += info().received_bytes;
  }
  for (const int received : backward.after) {
    backward.frees_bytes += program_.actions[received].keeps_bytes;
  }
  if (hands_back) {
    // What was sent has left by now, so that its memory is there again.
    const auto passed_on = own.passed_on.find(pass.micro_batch());
    if (passed_on != own.passed_on.end()) backward.after.push_back(passed_on->second);
    for (const int sent : own.handed_back) {
      const int64_t bytes = program_.actions[sent].keeps_bytes;
      backward.after.push_back(sent);
      backward.works_in_bytes -= bytes;
      backward.frees_bytes += bytes;
    }
    own.handed_back.clear();
  }
  if (writes) KeepTied(pass, backward);
  const int index = Add(std::move(backward));
  if (writes) last_backward_ = index;
  AddUses(pass, index);
  AddSends(pass, index);
}

void ProgramCompiler::KeepTied(const Pass& pass, Action& backward) const {
  for (const TiedStages& tied : Tied()) {
    if (PlaceOf(tied.lender) != PlaceOf(tied.borrower)) continue;
    if (pass.micro_batch() < tied.first_micro_batch) continue;
    const int64_t bytes = BytesHanded({Payload::kTied, tied.borrower, pass.micro_batch()});
    if (tied.borrower == stage_) backward.keeps_bytes += bytes;
    if (tied.lender == stage_) backward.frees_bytes += bytes;
  }
}

int64_t ProgramCompiler::BorrowedElements(int stage) const {
  int64_t elements = 0;
  for (const int p : input_.stages[stage].borrowed) elements += input_.parameters[p].num_learned();
  return elements;
}

int ProgramCompiler::StageOf(int parameter) const {
  return StageOfBlock(input_.stages, layout_.OffsetOf(parameter) / kBlockElements);
}

}  // namespace muster::plan
