#include "worker_runtime/plan/compile_program.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/sum_tree.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/arena_layout.h"
#include "worker_runtime/plan/held_memory.h"
#include "worker_runtime/plan/prove_program.h"
#include "worker_runtime/plan/use_schedule.h"

namespace muster::plan {
namespace {

constexpr int64_t kLossBytes = 2 * sizeof(double);

// What a rank sends when `bytes` are exchanged by `n`: the costs of muster/communicator.h.
int64_t SentBytes(Collective collective, int64_t bytes, int64_t n, int64_t num_roots) {
  if (n == 1) return 0;
  const int64_t others = bytes - bytes / n;
  switch (collective) {
    case Collective::kAllReduce:
      return (num_roots + 1) * others;
    case Collective::kReduceScatter:
      return num_roots * others;
    case Collective::kAllGather:
      return others;
    case Collective::kTransfer:
      return bytes;
    case Collective::kAlone:
      return 0;
  }
  return 0;
}

// So few bytes go by recursive doubling, unless the sum is ordered.
int64_t SentOfSmall(int64_t bytes, int64_t n) {
  return bytes * static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(n - 1)));
}

class Compiler {
 public:
  Compiler(const ProgramInput& input, int rank, bool reduces_each)
      : input_(input),
        reduces_each_(reduces_each),
        plan_(input.plan),
        stage_(rank / input.mesh.replicas),
        replica_(rank % input.mesh.replicas),
        info_(input.stages[stage_]),
        layout_(PlanBlockLayout(input.parameters)) {
    program_.rank = rank;
    program_.types = input.types;
  }

  Program Run() {
    SetUp();
    PlanUses();
    AddPasses();
    AddReductions();
    AddNorm();
    AddUpdates();
    program_.gathered_blocks = gathered_.size();
    program_.unreduced_blocks = unreduced_.size();
    program_.padding_bytes = padding_.size();
    HoldMemory(input_, info_, program_);
    return std::move(program_);
  }

 private:
  // Ranks that share one shard of each sharded state.
  int shard_ranks() const { return RanksOfShard(plan_, input_.mesh); }
  int inner() const { return replica_ % shard_ranks(); }
  int outer() const { return replica_ / shard_ranks(); }
  bool is_hybrid() const { return is_sharded() && shard_ranks() < replicas(); }
  bool Shards(const StatePlan& state) const {
    return state.placement == Placement::kShard && shard_ranks() > 1;
  }
  bool is_sharded() const { return Shards(plan_.optimizer); }
  bool shards_parameters() const { return Shards(plan_.parameters); }
  bool has_entries() const { return shards_parameters() || program_.streams_gradients; }
  // In ordered mode a shard group adds its own micro-batches first, which is the order of the tree
  // only where they are one subtree of it.
  bool AddsByGroup() const {
    if (!program_.ordered || !is_hybrid()) return is_sharded();
    return std::has_single_bit(static_cast<uint64_t>(shard_ranks() * plan_.accumulation));
  }
  bool is_last_stage() const { return stage_ + 1 == input_.mesh.stages; }
  int64_t num_roots() const { return static_cast<int64_t>(program_.root_slots.size()); }
  int replicas() const { return input_.mesh.replicas; }
  // The rank that is this replica in another stage.
  int RankAt(int stage) const { return stage * replicas() + replica_; }

  void SetUp() {
    groups_ = PlanRankGroups(plan_, input_.mesh, program_.rank);
    program_.groups = groups_.groups;
    program_.shards = groups_.shards;
    program_.secondary = groups_.secondary;
    program_.ordered = plan_.mode == SumMode::kOrdered;
    program_.leaves_per_rank = plan_.accumulation;
    if (program_.ordered) {
      sums_ = PlanOrderedSums(replica_, replicas(), plan_.accumulation);
    } else {
      sums_ = {.num_slots = 1, .root_slots = {0}};
      sums_.leaves.resize(plan_.accumulation);
    }
    program_.streams_gradients = StreamsGradients();
    program_.num_slots = program_.streams_gradients ? 0 : sums_.num_slots;
    program_.root_slots = sums_.root_slots;
    program_.blocks = info_.blocks;
    program_.num_blocks = layout_.num_blocks;
    program_.sharded = is_sharded();
    program_.trace = info_.trace;
    program_.buckets = BucketsInOrder();
    program_.bucket_of_unit.assign(layout_.units.size(), kNone);
    for (size_t b = 0; b < program_.buckets.size(); ++b) {
      const BlockRange blocks = program_.buckets[b].blocks;
      program_.owned.push_back(is_sharded() ? ShardOf(blocks, inner(), shard_ranks()) : blocks);
      for (size_t u = 0; u < layout_.units.size(); ++u) {
        if (layout_.units[u].Overlaps(blocks)) program_.bucket_of_unit[u] = static_cast<int>(b);
      }
    }
    ChooseGathered();
  }

  bool StreamsGradients() const {
    if (!Shards(plan_.gradients)) return false;
    if (program_.ordered) return plan_.accumulation == 1 && AddsByGroup();
    return plan_.accumulation == 1 || reduces_each_;
  }

  // Parameters that stay whole where others are sharded: small units, and what other stages borrow.
  void ChooseGathered() {
    program_.gathered.assign(program_.buckets.size(), shards_parameters());
    if (!shards_parameters()) return;
    const GatherPlan& gathering = plan_.gathering;
    int64_t persistent = 0;
    for (size_t u = 0; u < layout_.units.size(); ++u) {
      const int bucket = program_.bucket_of_unit[u];
      if (bucket == kNone) continue;
      const int64_t elements = layout_.units[u].num_elements();
      bool whole = elements <= gathering.persistence_threshold &&
                   persistent + elements <= gathering.persistence_total;
      for (const StageInfo& other : input_.stages) {
        for (const int p : other.borrowed) {
          whole = whole || input_.parameters[p].unit == static_cast<int>(u);
        }
      }
      if (!whole) continue;
      persistent += elements;
      program_.gathered[bucket] = false;
    }
  }

  // By the last of their gradients.
  std::vector<Bucket> BucketsInOrder() const {
    std::vector<Bucket> buckets = has_entries() ? BucketsOfUnits() : BucketsOfBlocks();
    const std::vector<int> place =
        ReadinessOf(info_.trace, static_cast<int>(input_.parameters.size()));
    const auto complete = [&](const Bucket& bucket) {
      int last = 0;
      for (int p = bucket.first_parameter; p < bucket.end_parameter; ++p) {
        last = std::max(last, place[p]);
      }
      return last;
    };
    std::stable_sort(buckets.begin(), buckets.end(),
                     [&](const Bucket& a, const Bucket& b) { return complete(a) < complete(b); });
    return buckets;
  }

  std::vector<Bucket> BucketsOfBlocks() const {
    return PlanBuckets(input_.parameters, layout_, info_.blocks,
                       {.bytes_per_element = BytesOf(input_.types.gradients),
                        .bytes_max = plan_.bucket_bytes_max,
                        .first_bytes = plan_.first_bucket_bytes,
                        .multiple = is_sharded() ? shard_ranks() : 1});
  }

  std::vector<Bucket> BucketsOfUnits() const {
    return PlanUnitBuckets(layout_, info_.blocks,
                           {.bytes_per_element = BytesOf(input_.types.gradients),
                            .bytes_max = shards_parameters() ? 0 : plan_.bucket_bytes_max});
  }

  int Add(Action action) {
    const int index = static_cast<int>(program_.actions.size());
    if (const int64_t bytes = PaddingOf(action, program_); bytes > 0) {
      // Two at a time, so that one travels while the next is filled.
      if (padded_.size() == 2) {
        padding_.Give(program_.actions[padded_.front()].padding, padded_.front());
        padded_.erase(padded_.begin());
      }
      action.padding = padding_.Take(bytes, action.after);
      padded_.push_back(index);
    }
    program_.actions.push_back(std::move(action));
    return index;
  }

  // --- forward and backward ---------------------------------------------------------------------

  struct Pass {
    int64_t micro_batch = 0;
    bool is_backward = false;
    size_t first_use = 0;
    size_t end_use = 0;
  };

  // One forward, one backward.
  std::vector<Pass> PassesInOrder() const {
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

  // When units are gathered and given up.
  void PlanUses() {
    passes_ = PassesInOrder();
    if (!has_entries()) return;
    for (Pass& pass : passes_) {
      pass.first_use = uses_.size();
      // What the stage behind found for a borrowed parameter is written before anything else.
      if (pass.is_backward) {
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

  void AddUse(const Pass& pass, int unit) {
    if (program_.bucket_of_unit[unit] == kNone) return;  // of another stage
    if (uses_.size() > pass.first_use && uses_.back().unit == unit) return;
    uses_.push_back(
        {.unit = unit, .micro_batch = pass.micro_batch, .is_backward = pass.is_backward});
  }

  std::vector<int> LentUnits() const {
    std::vector<int> units;
    for (const StageInfo& other : input_.stages) {
      for (const int p : other.borrowed) {
        const int unit = input_.parameters[p].unit;
        if (program_.bucket_of_unit[unit] != kNone) units.push_back(unit);
      }
    }
    return units;
  }

  void AddPasses() {
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

  // What happens while a pass runs, and as it ends.
  void AddUses(const Pass& pass, int action) {
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

  bool IsLast(const Pass& pass) const { return pass.micro_batch + 1 == plan_.accumulation; }

  void AddUnshardOf(int unit, Point at) {
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

  // Before use `t`.
  void AddReshard(int unit, size_t t, Point at, int after_pass) {
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

  // The first use of a bucket by a backward pass.
  void BeginGradients(Entry& entry) {
    const int b = program_.bucket_of_unit[entry.unit];
    if (gradient_place_[b] != kNone) return;
    const int64_t blocks = program_.shards.PaddedOf(program_.buckets[b].blocks.num_blocks());
    entry.place = gradient_place_[b] = unreduced_.Take(blocks, entry.waits);
  }

  // Buckets that no use from `t` on of this pass belongs to, and that are not reduced yet.
  void ReduceWhatIsComplete(const Pass& pass, size_t t, Point at) {
    for (size_t b = 0; b < program_.buckets.size(); ++b) {
      const bool comes =
          std::any_of(uses_.begin() + static_cast<int64_t>(t),
                      uses_.begin() + static_cast<int64_t>(pass.end_use), [&](const UnitUse& use) {
                        return program_.bucket_of_unit[use.unit] == static_cast<int>(b);
                      });
      if (comes || (b < is_reduced_.size() && is_reduced_[b])) continue;
      // Not used at all: with the end of the pass.
      const bool used =
          std::any_of(uses_.begin() + static_cast<int64_t>(pass.first_use),
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

  Action Transfer(ActionKind kind, Payload payload, int stage, int64_t micro_batch,
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

  void AddForward(const Pass& pass) {
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

  // Before the last backward pass, which hides it.
  void AddLoss(int last_forward) {
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

  void AddBackward(const Pass& pass) {
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
      backward.after.push_back(
          Add(Transfer(ActionKind::kRecv, Payload::kGradient, stage_ + 1, micro_batch,
                       input_.stages[stage_ + 1].received_bytes)));
    }
    for (int later = stage_ + 1; later < input_.mesh.stages; ++later) {
      if (const int64_t bytes = BorrowedBytes(later, Payload::kTied); bytes > 0) {
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
    if (stage_ > 0 && BorrowedElements(stage_) > 0) {
      Action send = Transfer(ActionKind::kSend, Payload::kTied, OwnerOfBorrowed(stage_),
                             micro_batch, BorrowedBytes(stage_, Payload::kTied));
      send.after = {last_backward_};
      handed_back_.push_back(Add(std::move(send)));
    }
  }

  // What `stage` borrows from this rank's stage, or, of this stage itself, from its owner.
  int64_t BorrowedElements(int stage) const {
    int64_t elements = 0;
    for (const int p : input_.stages[stage].borrowed) {
      const bool concerns = stage == stage_ || StageOf(p) == stage_;
      if (concerns) elements += input_.parameters[p].num_elements();
    }
    return elements;
  }
  int64_t BorrowedBytes(int stage, Payload payload) const {
    const bool is_value = payload == Payload::kValue;
    return BorrowedElements(stage) *
           BytesOf(is_value ? input_.types.parameters : input_.types.gradients);
  }
  int StageOf(int parameter) const {
    const int64_t block = layout_.offsets[parameter] / kBlockElements;
    int stage = 0;
    while (input_.stages[stage].blocks.end <= block) ++stage;
    return stage;
  }
  int OwnerOfBorrowed(int stage) const {
    const int owner = StageOf(input_.stages[stage].borrowed.front());
    for (const int p : input_.stages[stage].borrowed) MUSTER_CHECK(StageOf(p) == owner);
    return owner;
  }

  // --- gradients ----------------------------------------------------------------------------------

  void AddReductions() {
    if (replicas() > 1 && !has_entries()) {
      for (size_t b = 0; b < program_.buckets.size(); ++b) {
        AddReduce(static_cast<int>(b), plan_.accumulation - 1, {});
      }
      Replicate();
    }
    if (input_.mesh.stages > 1) AddShareLoss();
  }

  // `at`: where uses are known, the moment at which the gradients are all there; its entry is kNone
  // for the end of the pass.
  void AddReduce(int b, int64_t micro_batch, Point at) {
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

  // Behind all reductions, which it would hold up.
  void Replicate() {
    for (const int reduce : to_replicate_) {
      const int b = program_.actions[reduce].bucket;
      const int64_t bytes = program_.owned[b].num_elements() * BytesOf(input_.types.reduced);
      if (bytes == 0) continue;
      const int n = replicas() / shard_ranks();
      reduced_.push_back(Add({.kind = ActionKind::kReplicate,
                              .after = {reduce},
                              .stage = stage_,
                              .bucket = b,
                              .blocks = program_.owned[b],
                              .collective = Collective::kAllReduce,
                              .group = groups_.replicas,
                              .bytes = bytes,
                              .sends = SentBytes(Collective::kAllReduce, bytes, n, 1)}));
    }
    to_replicate_.clear();
  }

  void AddShareLoss() {
    Action share = {.kind = ActionKind::kShareLoss,
                    .after = {loss_ == kNone ? last_forward_ : loss_},
                    .collective = Collective::kAllReduce,
                    .group = 0,
                    .bytes = kLossBytes,
                    .sends = SentOfSmall(kLossBytes, input_.mesh.size())};
    loss_ = Add(std::move(share));
  }

  // --- from gradients to parameters ---------------------------------------------------------------

  // Where no rank has the whole gradient. Of replicas that have the same part one gives its squares.
  bool AddsSquares() const {
    return input_.mesh.size() > 1 && (is_sharded() || input_.mesh.stages > 1);
  }

  void AddNorm() {
    const bool gives = is_sharded() ? outer() == 0 : replica_ == 0;
    if (!AddsSquares() || gives) program_.normed = program_.owned;
    Action norm = {.kind = ActionKind::kNorm, .after = reduced_, .stage = stage_};
    norm.after.push_back(last_backward_);
    int ready = Add(std::move(norm));
    if (AddsSquares()) {
      const int64_t bytes = program_.num_blocks * kPartialBytes;
      ready = Add({.kind = ActionKind::kSquares,
                   .after = {ready},
                   .collective = Collective::kAllReduce,
                   .group = 0,
                   .bytes = bytes,
                   .sends = SentBytes(Collective::kAllReduce, bytes, input_.mesh.size(), 1)});
    }
    Action clip = {.kind = ActionKind::kClip, .after = {ready}, .stage = stage_};
    if (loss_ != kNone) clip.after.push_back(loss_);
    clip_ = Add(std::move(clip));
  }

  void AddUpdates() {
    std::vector<int> updates;
    for (size_t b = 0; b < program_.buckets.size(); ++b) {
      updates.push_back(Add({.kind = ActionKind::kUpdate,
                             .after = {clip_},
                             .stage = stage_,
                             .bucket = static_cast<int>(b),
                             .blocks = program_.owned[b]}));
      if (is_sharded() && !program_.gathered[b]) {
        updates.back() = AddUnshard(static_cast<int>(b), updates.back());
      }
    }
    AddTiedValues(updates);
  }

  int AddUnshard(int b, int update) {
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

  void AddTiedValues(const std::vector<int>& updates) {
    for (int later = stage_ + 1; later < input_.mesh.stages; ++later) {
      if (const int64_t bytes = BorrowedBytes(later, Payload::kValue); bytes > 0) {
        Action send = Transfer(ActionKind::kSend, Payload::kValue, later, kNone, bytes);
        send.after = updates;
        send.frees_bytes = send.keeps_bytes;
        Add(std::move(send));
      }
    }
    if (stage_ > 0 && BorrowedElements(stage_) > 0) {
      Action receive = Transfer(ActionKind::kRecv, Payload::kValue, OwnerOfBorrowed(stage_), kNone,
                                BorrowedBytes(stage_, Payload::kValue));
      receive.after = {last_backward_};  // which read the old one
      receive.frees_bytes = receive.keeps_bytes;
      Add(std::move(receive));
    }
  }

  const ProgramInput& input_;
  const bool reduces_each_;  // micro-batch, where gradients are sharded
  const Plan& plan_;
  const int stage_;
  const int replica_;
  const StageInfo& info_;
  const BlockLayout layout_;

  OrderedSums sums_;
  Program program_;
  RankGroups groups_;

  std::vector<Pass> passes_;
  std::vector<UnitUse> uses_;
  UseSchedule schedule_;
  ArenaLayout gathered_;
  ArenaLayout unreduced_;
  ArenaLayout padding_;
  std::vector<int> padded_;              // actions whose copies are not given back yet
  std::vector<int> unshard_;             // by unit: what gathered it; kNone
  std::vector<int> kept_;                // by unit: what keeps its secondary shards; kNone
  std::vector<int64_t> gradient_place_;  // by bucket, while it lies there
  std::vector<bool> is_reduced_;         // by bucket, of the pass at hand
  std::vector<int> to_replicate_;
  std::vector<int> last_reduce_;  // by bucket, of streamed gradients
  int leaving_ = kNone;           // the reduction whose memory is not given back yet
  int last_forward_ = kNone;
  int last_backward_ = kNone;
  std::vector<int> passed_on_;    // SENDs of activations, by micro-batch
  std::vector<int> handed_back_;  // SENDs of the last backward pass
  int loss_ = kNone;
  int clip_ = kNone;
  std::vector<int> reduced_;
};

}  // namespace

Program CompileProgram(const ProgramInput& input, int rank) {
  MUSTER_CHECK(0 <= rank && rank < input.mesh.size());
  MUSTER_CHECK(static_cast<int>(input.stages.size()) == input.mesh.stages);
  return Compiler(input, rank, ReducesEachMicroBatch(input)).Run();
}

bool ReducesEachMicroBatch(const ProgramInput& input) {
  switch (input.plan.gradient_reduction) {
    case GradientReduction::kEachMicroBatch:
      return true;
    case GradientReduction::kOnce:
      return false;
    case GradientReduction::kChosen:
      break;
  }
  if (input.plan.accumulation == 1 || input.plan.memory_bytes_max == 0) return true;
  for (int stage = 0; stage < input.mesh.stages; ++stage) {
    const Program once = Compiler(input, stage * input.mesh.replicas, false).Run();
    if (TotalOf(FiguresOf(once).peak) > input.plan.memory_bytes_max) return true;
  }
  return false;
}

bool NeedsUses(const Plan& plan, Mesh mesh) {
  return RanksOfShard(plan, mesh) > 1 && plan.gradients.placement == Placement::kShard;
}

namespace {

// Of the replicas of a stage.
int ReplicaThatNeedsMost(const ProgramInput& input) {
  const Plan& plan = input.plan;
  const Mesh mesh = input.mesh;
  if (plan.mode != SumMode::kOrdered) return 0;  // the largest shards
  const auto needs = [&](int rank) {
    const int64_t replica = rank % mesh.replicas;
    const LeafRange range = {replica * plan.accumulation, (replica + 1) * plan.accumulation};
    const int64_t leaves = mesh.replicas * plan.accumulation;
    return std::pair(OrderedPartialSums(replica, mesh.replicas, plan.accumulation),
                     CoverWithSubtrees(range, leaves).size());
  };
  int most = 0;
  for (int rank = 1; rank < mesh.replicas; ++rank) {
    if (needs(rank) > needs(most)) most = rank;
  }
  const auto bytes = [&](int rank) { return TotalOf(FiguresOf(CompileProgram(input, rank)).peak); };
  return most == 0 || bytes(0) > bytes(most) ? 0 : most;
}

}  // namespace

int RankThatNeedsMost(const ProgramInput& input, int stage) {
  return stage * input.mesh.replicas + ReplicaThatNeedsMost(input);
}

int RankThatNeedsMost(const ProgramInput& input) {
  int most = 0;
  int64_t most_bytes = -1;
  for (int stage = 0; stage < input.mesh.stages; ++stage) {
    const int rank = RankThatNeedsMost(input, stage);
    const int64_t bytes =
        input.mesh.stages == 1 ? 0 : TotalOf(FiguresOf(CompileProgram(input, rank)).peak);
    if (bytes <= most_bytes) continue;
    most = rank;
    most_bytes = bytes;
  }
  return most;
}

StageInfo WholeModel(const BlockLayout& layout, UseTrace trace) {
  return {.blocks = {0, layout.num_blocks}, .trace = std::move(trace)};
}

}  // namespace muster::plan
