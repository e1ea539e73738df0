// How CompileProgram makes the program of one rank: a pass over the model after the other, then
// what becomes of the gradients. Its methods are in compile_program.cc (set-up), compile_passes.cc
// and compile_gradients.cc.
//
// Threads: thread-compatible; used once.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "worker_runtime/plan/arena_layout.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/stage_order.h"
#include "worker_runtime/plan/use_schedule.h"

namespace muster::plan {

inline constexpr int64_t kLossBytes = 2 * sizeof(double);

// What a rank sends when `bytes` are exchanged by `n`: the costs of muster/communicator.h.
int64_t SentBytes(Collective collective, int64_t bytes, int64_t n, int64_t num_roots);
// So few bytes go by recursive doubling, unless the sum is ordered.
int64_t SentOfSmall(int64_t bytes, int64_t n);

class ProgramCompiler {
 public:
  // `input` has a schedule.
  ProgramCompiler(const ProgramInput& input, int rank, bool reduces_each)
      : input_(input),
        reduces_each_(reduces_each),
        plan_(input.plan),
        place_(rank / input.mesh.replicas),
        replica_(rank % input.mesh.replicas),
        layout_(PlanBlockLayout(input.parameters)),
        of_stage_(input.stages.size()) {
    program_.rank = rank;
    program_.types = input.types;
  }

  Program Run();

 private:
  // Ranks that share one shard of each sharded state.
  int shard_ranks() const { return RanksOfShard(plan_, input_.mesh); }
  int inner() const { return replica_ % shard_ranks(); }
  int outer() const { return replica_ / shard_ranks(); }
  bool is_hybrid() const { return is_sharded() && shard_ranks() < replicas(); }
  bool Shards(const StatePlan& state) const;
  bool is_sharded() const { return Shards(plan_.optimizer); }
  bool shards_parameters() const { return Shards(plan_.parameters); }
  bool has_entries() const { return shards_parameters() || program_.streams_gradients; }
  // In ordered mode a shard group adds its own micro-batches first, which is the order of the tree
  // only where they are one subtree of it.
  bool AddsByGroup() const;
  // The gradient of what is borrowed: ordered sums are over micro-batches, others are made where
  // they are found.
  int64_t FirstTied() const { return program_.ordered ? 0 : plan_.accumulation - 1; }
  const StageInfo& info() const { return input_.stages[stage_]; }
  bool is_last_stage() const { return stage_ + 1 == static_cast<int>(input_.stages.size()); }
  int PlaceOf(int stage) const { return input_.schedule->rank_of_stage[stage]; }
  int64_t num_roots() const { return static_cast<int64_t>(program_.root_slots.size()); }
  int replicas() const { return input_.mesh.replicas; }
  // The rank that is this replica at another place.
  int RankAt(int place) const { return place * replicas() + replica_; }

  void SetUp();
  bool StreamsGradients() const;
  // This rank's stages, in the order in which their gradients are whole.
  std::vector<int> StagesAsTheyEnd() const;
  // Parameters that stay whole where others are sharded: small units, and what other stages borrow.
  void ChooseGathered();
  bool IsLent(int unit, bool frozen) const;
  // Those of the stage at hand, by the last of their gradients.
  std::vector<Bucket> BucketsInOrder() const;
  std::vector<Bucket> BucketsOfBlocks() const;
  std::vector<Bucket> BucketsOfUnits() const;
  std::vector<Bucket> BucketsOfParameters() const;
  // Nothing of a unit needs to be there as a whole.
  bool EntersBuckets() const;
  // Blocks that keep the heads of buckets, behind those of `unreduced_`.
  void PlaceHeads();
  int Add(Action action);

  // --- compile_passes.cc: forward and backward
  struct Pass {
    PassOfRank order;
    size_t first_use = 0;
    size_t end_use = 0;

    PassKind kind() const { return order.pass.kind; }
    int64_t micro_batch() const { return order.pass.micro_batch; }
    bool is_forward() const { return kind() == PassKind::kForward; }
    bool writes_gradients() const {
      return kind() == PassKind::kBackward || kind() == PassKind::kWeightGradient;
    }
  };
  std::vector<TiedStages> Tied() const;
  // When units are gathered and given up.
  void PlanUses();
  // The units that it comes to, in this order.
  const std::vector<int>& UsesOf(const Pass& pass) const;
  void AddUse(const Pass& pass, int unit);
  void AddUsesOfBuckets(const Pass& pass);
  std::vector<int> LentUnits() const;
  void AddPasses();
  // What happens while a pass runs, and as it ends.
  void AddUses(const Pass& pass, int action);
  bool IsLast(const Pass& pass) const { return pass.micro_batch() + 1 == plan_.accumulation; }
  // Whether it is one of the stage at hand.
  bool IsOfStage(size_t bucket) const {
    return info().blocks.Overlaps(program_.buckets[bucket].blocks);
  }

  // Gathers what the unit has in shards.
  void AddUnshardsOf(int unit, Point at);
  void AddUnshardOf(int bucket, Point at);
  // Before use `t`.
  void AddReshardsOf(int unit, size_t t, Point at, int after_pass);
  void AddReshard(int bucket, bool comes_again, Point at, int after_pass);
  ArenaLayout& GatherArenaOf(int bucket) {
    return program_.buckets[bucket].frozen ? frozen_gathered_ : gathered_;
  }
  // The first use of a bucket by a backward pass.
  void BeginGradients(Entry& entry);
  int64_t BlocksOfGradients(int b) const;
  // The same for a copy of so many bytes that an action works on.
  int64_t RoomForCopy(const Action& action, int64_t bytes) const;
  // Buckets that no use from `t` on of this pass belongs to, and that are not reduced yet.
  void ReduceWhatIsComplete(const Pass& pass, size_t t, Point at);
  // One of what is handed on between this rank and the one at `with.place`.
  Action Transfer(ActionKind kind, const HandedBy& with) const;
  int64_t BytesHanded(const Handed& what) const;
  void AddReceives(const Pass& pass);
  void AddSends(const Pass& pass, int action);
  void AddForward(const Pass& pass);
  // Before the last backward pass, which hides it.
  void AddLoss(int last_forward);
  void AddBackward(const Pass& pass);
  // What one stage of this rank has found for a parameter of another one stays until that takes it.
  void KeepTied(const Pass& pass, Action& backward) const;
  // What learns of what `stage` borrows.
  int64_t BorrowedElements(int stage) const;
  int StageOf(int parameter) const;

  // --- compile_gradients.cc: reductions
  void AddReductions();
  // Those of the stage at hand, whose gradients are whole with its last pass.
  void ReduceStage();
  // `at`: where uses are known, the moment at which the gradients are all there; its entry is kNone
  // for the end of the pass.
  void AddReduce(int b, int64_t micro_batch, Point at);
  // Behind all reductions, which it would hold up.
  void Replicate();
  void AddShareLoss();
  // The rank of the world whose sum it is.
  int GiverOfLoss() const;

  // --- compile_gradients.cc: from gradients to parameters

  // Where no rank has the whole gradient. Of replicas that have the same part one gives its
  // squares.
  bool AddsSquares() const;
  void AddNorm();
  void AddUpdates();
  int AddUnshard(int b, int update);
  void AddTiedValues(const std::vector<int>& updates);

  const ProgramInput& input_;
  const bool reduces_each_;  // micro-batch, where gradients are sharded
  const Plan& plan_;
  const int place_;
  const int replica_;
  const BlockLayout layout_;

  OrderedSums sums_;
  Program program_;
  RankGroups groups_;

  int stage_ = 0;  // at hand: that of the pass or of the buckets which are added
  std::vector<Pass> passes_;
  std::vector<UnitUse> uses_;
  UseSchedule schedule_;
  ArenaLayout gathered_;
  ArenaLayout frozen_gathered_;
  ArenaLayout unreduced_;
  ArenaLayout padding_;
  std::vector<int> padded_;  // actions whose copies are not given back yet
  struct Gathering {
    int unshard = kNone;  // what gathered it
    int kept = kNone;     // what keeps its secondary shards
  };
  std::vector<Gathering> gathering_;     // by bucket
  std::vector<int64_t> gradient_place_;  // by bucket, while it lies there
  std::vector<bool> is_reduced_;         // by bucket, of the pass at hand
  std::vector<int> to_replicate_;
  std::vector<int> last_reduce_;  // by bucket, of streamed gradients
  int leaving_ = kNone;           // the reduction whose memory is not given back yet
  int last_forward_ = kNone;
  int last_backward_ = kNone;
  std::map<Handed, int> received_;  // RECVs
  struct OfStage {
    std::map<int64_t, int> passed_on;  // SENDs of activations, by micro-batch
    std::vector<int> handed_back;      // SENDs that no backward pass has waited for
  };
  std::vector<OfStage> of_stage_;
  int loss_ = kNone;
  int clip_ = kNone;
  std::vector<int> reduced_;
};

}  // namespace muster::plan
