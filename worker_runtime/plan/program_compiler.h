// How CompileProgram makes the program of one rank: a pass over the model after the other, then
// what becomes of the gradients. Its methods are in compile_program.cc (set-up), compile_passes.cc
// and compile_gradients.cc.
//
// Threads: thread-compatible; used once.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_runtime/plan/arena_layout.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/use_schedule.h"

namespace muster::plan {

inline constexpr int64_t kLossBytes = 2 * sizeof(double);

// What a rank sends when `bytes` are exchanged by `n`: the costs of muster/communicator.h.
int64_t SentBytes(Collective collective, int64_t bytes, int64_t n, int64_t num_roots);
// So few bytes go by recursive doubling, unless the sum is ordered.
int64_t SentOfSmall(int64_t bytes, int64_t n);

class ProgramCompiler {
 public:
  ProgramCompiler(const ProgramInput& input, int rank, bool reduces_each)
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
  bool HandsTiedBack(int64_t micro_batch) const {
    return program_.ordered || micro_batch + 1 == plan_.accumulation;
  }
  bool is_last_stage() const { return stage_ + 1 == input_.mesh.stages; }
  int64_t num_roots() const { return static_cast<int64_t>(program_.root_slots.size()); }
  int replicas() const { return input_.mesh.replicas; }
  // The rank that is this replica in another stage.
  int RankAt(int stage) const { return stage * replicas() + replica_; }

  void SetUp();
  bool StreamsGradients() const;
  // Parameters that stay whole where others are sharded: small units, and what other stages borrow.
  void ChooseGathered();
  // By the last of their gradients.
  std::vector<Bucket> BucketsInOrder() const;
  std::vector<Bucket> BucketsOfBlocks() const;
  std::vector<Bucket> BucketsOfUnits() const;
  int Add(Action action);

  // --- compile_passes.cc: forward and backward
  struct Pass {
    int64_t micro_batch = 0;
    bool is_backward = false;
    size_t first_use = 0;
    size_t end_use = 0;
  };
  // One forward, one backward.
  std::vector<Pass> PassesInOrder() const;
  // When units are gathered and given up.
  void PlanUses();
  void AddUse(const Pass& pass, int unit);
  std::vector<int> LentUnits() const;
  void AddPasses();
  // What happens while a pass runs, and as it ends.
  void AddUses(const Pass& pass, int action);
  bool IsLast(const Pass& pass) const { return pass.micro_batch + 1 == plan_.accumulation; }

  void AddUnshardOf(int unit, Point at);
  // Before use `t`.
  void AddReshard(int unit, size_t t, Point at, int after_pass);
  // The first use of a bucket by a backward pass.
  void BeginGradients(Entry& entry);
  // Buckets that no use from `t` on of this pass belongs to, and that are not reduced yet.
  void ReduceWhatIsComplete(const Pass& pass, size_t t, Point at);
  Action Transfer(ActionKind kind, Payload payload, int stage, int64_t micro_batch,
                  int64_t bytes) const;
  void AddForward(const Pass& pass);
  // Before the last backward pass, which hides it.
  void AddLoss(int last_forward);
  void AddBackward(const Pass& pass);
  // What `stage` borrows from this rank's stage, or, of this stage itself, from its owner.
  int64_t BorrowedElements(int stage) const;
  int64_t BorrowedBytes(int stage, Payload payload) const;
  int StageOf(int parameter) const;
  int OwnerOfBorrowed(int stage) const;

  // --- compile_gradients.cc: reductions
  void AddReductions();
  // `at`: where uses are known, the moment at which the gradients are all there; its entry is kNone
  // for the end of the pass.
  void AddReduce(int b, int64_t micro_batch, Point at);
  // Behind all reductions, which it would hold up.
  void Replicate();
  void AddShareLoss();

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

}  // namespace muster::plan
