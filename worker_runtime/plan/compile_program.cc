#include "worker_runtime/plan/compile_program.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/sum_tree.h"
#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

constexpr int64_t kLossBytes = 2 * sizeof(double);
constexpr int64_t kPartialBytes = sizeof(double);  // of a block's squares

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
  Compiler(const ProgramInput& input, int rank)
      : input_(input),
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
    AddPasses();
    AddReductions();
    AddNorm();
    AddUpdates();
    HoldMemory();
    return std::move(program_);
  }

 private:
  bool is_sharded() const {
    return plan_.optimizer.placement == Placement::kShard && replicas() > 1;
  }
  bool is_last_stage() const { return stage_ + 1 == input_.mesh.stages; }
  int64_t num_roots() const { return static_cast<int64_t>(program_.root_slots.size()); }
  int replicas() const { return input_.mesh.replicas; }
  int world_group() const { return 0; }
  int stage_group() const { return input_.mesh.stages == 1 ? 0 : 1; }
  // The rank that is this replica in another stage.
  int RankAt(int stage) const { return stage * replicas() + replica_; }

  void SetUp() {
    Group world = {.name = "world"};
    Group stage = {.name = absl::StrCat("stage", stage_)};
    for (int r = 0; r < input_.mesh.size(); ++r) world.ranks.push_back(r);
    for (int r = 0; r < replicas(); ++r) stage.ranks.push_back(stage_ * replicas() + r);
    program_.groups.push_back(std::move(world));
    if (input_.mesh.stages > 1) program_.groups.push_back(std::move(stage));

    program_.ordered = plan_.mode == SumMode::kOrdered;
    program_.leaves_per_rank = plan_.accumulation;
    if (program_.ordered) {
      sums_ = PlanOrderedSums(replica_, replicas(), plan_.accumulation);
    } else {
      sums_ = {.num_slots = 1, .root_slots = {0}};
      sums_.leaves.resize(plan_.accumulation);
    }
    program_.num_slots = sums_.num_slots;
    program_.root_slots = sums_.root_slots;
    program_.blocks = info_.blocks;
    program_.num_blocks = layout_.num_blocks;
    program_.sharded = is_sharded();
    program_.trace = info_.trace;
    program_.buckets = BucketsInOrder();
    for (const Bucket& bucket : program_.buckets) {
      program_.owned.push_back(is_sharded() ? ShardOf(bucket.blocks, replica_, replicas())
                                            : bucket.blocks);
    }
  }

  // By the last of their gradients.
  std::vector<Bucket> BucketsInOrder() const {
    std::vector<Bucket> buckets = PlanBuckets(input_.parameters, layout_, info_.blocks,
                                              {.bytes_per_element = BytesOf(input_.types.gradients),
                                               .bytes_max = plan_.bucket_bytes_max,
                                               .first_bytes = plan_.first_bucket_bytes,
                                               .multiple = is_sharded() ? replicas() : 1});
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

  int Add(Action action) {
    if (action.collective != Collective::kAlone && action.collective != Collective::kTransfer) {
      action.group = std::max(action.group, 0);
    }
    program_.actions.push_back(std::move(action));
    return static_cast<int>(program_.actions.size()) - 1;
  }

  // --- forward and backward ---------------------------------------------------------------------

  void AddPasses() {
    const int64_t m = plan_.accumulation;
    const int64_t warm_up = std::min<int64_t>(m, input_.mesh.stages - stage_);
    int64_t forward = 0;
    while (forward < warm_up) AddForward(forward++);
    for (int64_t backward = 0; backward < m; ++backward) {
      AddBackward(backward);
      if (forward < m) AddForward(forward++);
    }
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
    if (kind == ActionKind::kSend) action.sends = bytes;
    return action;
  }

  void AddForward(int64_t micro_batch) {
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
    if (!is_last_stage()) {
      Action send = Transfer(ActionKind::kSend, Payload::kActivation, stage_ + 1, micro_batch,
                             input_.stages[stage_ + 1].received_bytes);
      send.after = {at};
      Add(std::move(send));
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
                   .group = stage_group(),
                   .bytes = kLossBytes};
    loss.sends = program_.ordered ? SentBytes(Collective::kAllReduce, kLossBytes, n, num_roots())
                                  : SentOfSmall(kLossBytes, n);
    loss_ = Add(std::move(loss));
  }

  void AddBackward(int64_t micro_batch) {
    const OrderedLeaf& leaf = sums_.leaves[micro_batch];
    const bool is_last = micro_batch + 1 == plan_.accumulation;
    Action backward = {.kind = ActionKind::kBackward,
                       .stage = stage_,
                       .micro_batch = micro_batch,
                       .slot = leaf.slot,
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
    last_backward_ = Add(std::move(backward));
    if (stage_ > 0) {
      Action send = Transfer(ActionKind::kSend, Payload::kGradient, stage_ - 1, micro_batch,
                             info_.received_bytes);
      send.after = {last_backward_};
      Add(std::move(send));
    }
    if (stage_ > 0 && BorrowedElements(stage_) > 0) {
      Action send = Transfer(ActionKind::kSend, Payload::kTied, OwnerOfBorrowed(stage_),
                             micro_batch, BorrowedBytes(stage_, Payload::kTied));
      send.after = {last_backward_};
      Add(std::move(send));
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
    if (replicas() > 1) {
      for (size_t b = 0; b < program_.buckets.size(); ++b) AddReduce(static_cast<int>(b));
    }
    if (input_.mesh.stages > 1) AddShareLoss();
  }

  void AddReduce(int b) {
    const Bucket& bucket = program_.buckets[b];
    Action reduce = {
        .kind = ActionKind::kReduce,
        .stage = stage_,
        .bucket = b,
        .blocks = bucket.blocks,
        .merges = sums_.leaves.back().merges,
        .collective = is_sharded() ? Collective::kReduceScatter : Collective::kAllReduce,
        .group = stage_group(),
        .bytes = CollectiveBytes(bucket, input_.types.gradients)};
    reduce.sends = SentBytes(reduce.collective, reduce.bytes, replicas(), num_roots());
    if (plan_.overlap) {
      reduce.backward = last_backward_;
      reduce.first_parameter = bucket.first_parameter;
      reduce.end_parameter = bucket.end_parameter;
    } else {
      reduce.after = {last_backward_};
    }
    reduced_.push_back(Add(std::move(reduce)));
  }

  // With the padding that makes shards alike.
  int64_t CollectiveBytes(const Bucket& bucket, DType dtype) const {
    int64_t blocks = bucket.blocks.num_blocks();
    if (is_sharded()) blocks = (blocks + replicas() - 1) / replicas() * replicas();
    return blocks * kBlockElements * BytesOf(dtype);
  }

  void AddShareLoss() {
    Action share = {.kind = ActionKind::kShareLoss,
                    .after = {loss_ == kNone ? last_forward_ : loss_},
                    .collective = Collective::kAllReduce,
                    .group = world_group(),
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
    if (!AddsSquares() || is_sharded() || replica_ == 0) program_.normed = program_.owned;
    Action norm = {.kind = ActionKind::kNorm, .after = reduced_, .stage = stage_};
    norm.after.push_back(last_backward_);
    int ready = Add(std::move(norm));
    if (AddsSquares()) {
      const int64_t bytes = program_.num_blocks * kPartialBytes;
      ready = Add({.kind = ActionKind::kSquares,
                   .after = {ready},
                   .collective = Collective::kAllReduce,
                   .group = world_group(),
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
      if (is_sharded()) updates.back() = AddUnshard(static_cast<int>(b), updates.back());
    }
    AddTiedValues(updates);
  }

  int AddUnshard(int b, int update) {
    const Bucket& bucket = program_.buckets[b];
    const int64_t bytes = CollectiveBytes(bucket, input_.types.parameters);
    return Add({.kind = ActionKind::kUnshard,
                .after = {update},
                .stage = stage_,
                .bucket = b,
                .blocks = bucket.blocks,
                .collective = Collective::kAllGather,
                .group = stage_group(),
                .bytes = bytes,
                .sends = SentBytes(Collective::kAllGather, bytes, replicas(), 1)});
  }

  void AddTiedValues(const std::vector<int>& updates) {
    for (int later = stage_ + 1; later < input_.mesh.stages; ++later) {
      if (const int64_t bytes = BorrowedBytes(later, Payload::kValue); bytes > 0) {
        Action send = Transfer(ActionKind::kSend, Payload::kValue, later, kNone, bytes);
        send.after = updates;
        Add(std::move(send));
      }
    }
    if (stage_ > 0 && BorrowedElements(stage_) > 0) {
      Action receive = Transfer(ActionKind::kRecv, Payload::kValue, OwnerOfBorrowed(stage_), kNone,
                                BorrowedBytes(stage_, Payload::kValue));
      receive.after = {last_backward_};  // which read the old one
      Add(std::move(receive));
    }
  }

  // --- memory -------------------------------------------------------------------------------------

  void HoldMemory() {
    const StateTypes& types = input_.types;
    const int64_t whole = info_.blocks.num_elements();
    int64_t borrowed = 0;
    for (const int p : info_.borrowed) borrowed += input_.parameters[p].num_elements();
    int64_t frozen = 0;
    for (const ParameterInfo& p : input_.parameters) {
      if (p.frozen) frozen += PlacedElements(p.num_elements());
    }
    int64_t owned = 0;
    for (const BlockRange& blocks : program_.owned) owned += blocks.num_elements();
    At(program_.held, Arena::kParameters) = (whole + borrowed + frozen) * BytesOf(types.parameters);
    At(program_.held, Arena::kGradients) = (whole + borrowed) * BytesOf(types.gradients);
    At(program_.held, Arena::kPartialSums) =
        (program_.num_slots - 1) * whole * BytesOf(types.gradients);
    At(program_.held, Arena::kOptimizer) =
        owned * (NumMoments(plan_.update) * BytesOf(types.moments) +
                 (types.has_master() ? BytesOf(types.master) : 0));
    At(program_.held, Arena::kBuffers) = PaddedBytes() + program_.num_blocks * kPartialBytes;
  }

  // Of the one bucket that is no multiple of the ranks: each of its roots, and its parameters.
  int64_t PaddedBytes() const {
    int64_t most = 0;
    for (const Bucket& bucket : program_.buckets) {
      const StateTypes& types = input_.types;
      const int64_t bytes = CollectiveBytes(bucket, types.gradients);
      const bool padded = bytes != bucket.blocks.num_elements() * BytesOf(types.gradients);
      const int64_t values = CollectiveBytes(bucket, types.parameters);
      if (padded) most = std::max(most, std::max(num_roots() * bytes, values));
    }
    return most;
  }

  const ProgramInput& input_;
  const Plan& plan_;
  const int stage_;
  const int replica_;
  const StageInfo& info_;
  const BlockLayout layout_;

  OrderedSums sums_;
  Program program_;
  int last_forward_ = kNone;
  int last_backward_ = kNone;
  int loss_ = kNone;
  int clip_ = kNone;
  std::vector<int> reduced_;
};

}  // namespace

Program CompileProgram(const ProgramInput& input, int rank) {
  MUSTER_CHECK(0 <= rank && rank < input.mesh.size());
  MUSTER_CHECK(static_cast<int>(input.stages.size()) == input.mesh.stages);
  return Compiler(input, rank).Run();
}

int RankThatNeedsMost(const Plan& plan, Mesh mesh) {
  int most = 0;
  if (plan.mode != SumMode::kOrdered) return most;
  const auto needs = [&](int rank) {
    const int64_t replica = rank % mesh.replicas;
    const LeafRange range = {replica * plan.accumulation, (replica + 1) * plan.accumulation};
    const int64_t leaves = mesh.replicas * plan.accumulation;
    return std::pair(OrderedPartialSums(replica, mesh.replicas, plan.accumulation),
                     CoverWithSubtrees(range, leaves).size());
  };
  for (int rank = 1; rank < mesh.replicas; ++rank) {
    if (needs(rank) > needs(most)) most = rank;
  }
  return most;
}

StageInfo WholeModel(const BlockLayout& layout, UseTrace trace) {
  return {.blocks = {0, layout.num_blocks}, .trace = std::move(trace)};
}

}  // namespace muster::plan
