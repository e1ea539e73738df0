// The program of one rank while it is compiled: what it is made from, its groups and buckets, and
// the actions so far.
//
// Threads: thread-compatible; used once.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_runtime/plan/arena_layout.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/ordered_sums.h"
#include "worker_runtime/plan/program.h"

namespace muster::plan {

inline constexpr int64_t kLossBytes = 2 * sizeof(double);

struct ProgramDraft {
  // Has no actions yet. `input` has a schedule, and outlives this. `the_reduces_each`: gradients
  // that are sharded are reduced with each micro-batch.
  ProgramDraft(const ProgramInput& the_input, int rank, bool the_reduces_each);

  // Ranks that share one shard of each sharded state.
  int shard_ranks() const { return input.mesh.SizeOf(kShards); }
  bool is_hybrid() const { return is_sharded() && shard_ranks() < replicas(); }
  bool Shards(const StatePlan& state) const;
  bool is_sharded() const { return Shards(input.plan.optimizer); }
  bool shards_parameters() const { return Shards(input.plan.parameters); }
  bool has_entries() const { return shards_parameters() || program.streams_gradients; }
  // In ordered mode a shard group adds its own micro-batches first, which is the order of the tree
  // only where they are one subtree of it.
  bool AddsByGroup() const;
  // The gradient of what is borrowed: ordered sums are over micro-batches, others are made where
  // they are found.
  int64_t FirstTied() const { return program.ordered ? 0 : input.plan.accumulation - 1; }
  bool is_last(int64_t micro_batch) const { return micro_batch + 1 == input.plan.accumulation; }
  const StageInfo& info() const { return input.stages[stage]; }
  bool is_last_stage() const { return stage + 1 == static_cast<int>(input.stages.size()); }
  int PlaceOf(int of_stage) const { return input.schedule->rank_of_stage[of_stage]; }
  int replicas() const { return input.mesh.replicas(); }
  // Nothing of a unit needs to be there as a whole.
  bool EntersBuckets() const;
  // Whether the bucket is one of the stage at hand.
  bool IsOfStage(size_t bucket) const {
    return info().blocks.Overlaps(program.buckets[bucket].blocks);
  }
  // What learns of what `of_stage` borrows.
  int64_t BorrowedElements(int of_stage) const;
  int StageOf(int parameter) const;
  // What its gradients take in their arena.
  int64_t BlocksOfGradients(int bucket) const;

  // Makes room for the copy that the action works on, if any. Its number.
  int Add(Action action);
  // One that gathers a bucket from its shards; fills in its collective.
  int AddUnshard(Unshard unshard, std::vector<int> after, Point at = {});
  // No more will come: the size of the copies, and the memory that the rank holds.
  void Finish();

  const ProgramInput& input;
  const bool reduces_each;
  const int place;
  const BlockLayout layout;
  BucketGroups groups;  // of all buckets
  Program program;
  int stage = 0;  // at hand: that of the pass or of the buckets which are added

 private:
  void AddGroups();
  bool StreamsGradients() const;
  // This rank's stages, in the order in which their gradients are whole.
  std::vector<int> StagesAsTheyEnd() const;
  void AddBuckets();
  // Parameters that stay whole where others are sharded: small units, and what other stages borrow.
  void ChooseGathered();
  bool IsLent(int unit, bool frozen) const;
  // The buckets of the stage at hand, by the last of their gradients.
  std::vector<Bucket> BucketsInOrder() const;
  std::vector<Bucket> BucketsOfBlocks() const;
  std::vector<Bucket> BucketsOfUnits() const;
  std::vector<Bucket> BucketsOfParameters() const;
  // Its collective has another type than what it exchanges, or shares out what lies whole here and
  // the ranks do not divide.
  bool WorksOnCopy(const Action& action) const;
  int64_t RoomForCopy(const Action& action) const;

  ArenaLayout padding_;
  std::vector<int> padded_;  // actions whose copies are not given back yet
};

}  // namespace muster::plan
