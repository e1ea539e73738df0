// From a plan to the program of a rank.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "muster/plan.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/choose_reduction.h"
#include "worker_runtime/plan/parameter_info.h"
#include "worker_runtime/plan/program.h"
#include "worker_runtime/plan/rank_groups.h"
#include "worker_runtime/plan/state_types.h"
#include "worker_runtime/plan/use_trace.h"

namespace muster::plan {

// What one stage of a pipeline computes; the whole model where there is one stage.
struct StageInfo {
  BlockRange blocks;  // of its units, which are neighbours
  UseTrace trace;
  // Parameters of an earlier stage that it uses too (tied embeddings): it holds a copy of the
  // values, and hands their gradients to their owner before that writes its own.
  std::vector<int> borrowed;
  int64_t received_bytes = 0;  // of the activation that enters it, per micro-batch
};

struct ProgramInput {
  const Plan& plan;
  absl::Span<const ParameterInfo> parameters;
  StateTypes types;
  Mesh mesh;
  absl::Span<const StageInfo> stages;  // [mesh.stages]
};

// The program of `rank`. A pipeline runs one forward, one backward (1F1B): stage s of p first goes
// forward min(m, p - s) times, then backward and forward in turn.
//
// Groups: "world" (0); the replicas of this rank's stage; of them those that hold shards of one
// whole; those that hold the same shard; those that hold secondary shards. Where two are the same
// ranks, they are one group.
//
// plan.shard_ranks and plan.gathering.secondary_ranks divide what they are part of (CheckGroups).
// Source: Narayanan et al., "Efficient Large-Scale Language Model Training", 2021, section 2.2.1
Program CompileProgram(const ProgramInput& input, int rank);

// When sharded gradients are reduced, and why: what the plan says, else what its costs say.
ReductionChoice ReductionOf(const ProgramInput& input);
// Whether gradients that are sharded are reduced with each micro-batch.
bool ReducesEachMicroBatch(const ProgramInput& input);

// Whether the programs of a plan need to know the uses of units (UseTrace::forward).
bool NeedsUses(const Plan& plan, Mesh mesh);

// The rank of `mesh`, or one of them, whose step takes the most memory and sends the most: in
// ordered mode ranks differ in how many partial sums they hold.
int RankThatNeedsMost(const ProgramInput& input);
int RankThatNeedsMost(const ProgramInput& input, int stage);  // of one stage

// The single stage of a model that is not cut.
StageInfo WholeModel(const BlockLayout& layout, UseTrace trace);

}  // namespace muster::plan
