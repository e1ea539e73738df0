// Compiles a plan to the program of a rank.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "muster/plan.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/choose_reduction.h"
#include "worker_runtime/plan/mesh.h"
#include "worker_runtime/plan/parameter_info.h"
#include "worker_runtime/plan/program.h"
#include "worker_runtime/plan/schedules/schedule.h"
#include "worker_runtime/plan/state_types.h"
#include "worker_runtime/plan/use_trace.h"

namespace muster::plan {

// What one stage of a pipeline computes; the whole model where there is one stage.
struct StageInfo {
  BlockRange blocks;         // of its units, which are neighbours, with gradients
  BlockRange frozen_blocks;  // of its units' frozen parameters
  UseTrace trace;
  // Parameters of an earlier stage that it uses too (tied embeddings): it holds a copy of the
  // values, and hands their gradients to their owner before that writes its own. Nothing of a
  // frozen one travels.
  std::vector<int> borrowed;
  int64_t received_bytes = 0;  // of the activation that enters it, per micro-batch
};

struct ProgramInput {
  const Plan& plan;
  absl::Span<const ParameterInfo> parameters;
  StateTypes types;
  Mesh mesh;                           // MeshOf(plan)
  absl::Span<const StageInfo> stages;  // [mesh.places() * stages per rank]
  // Its ranks stand for their replicas; null: as the plan says (ScheduleOf).
  const Schedule* schedule = nullptr;
};

// Whether a pipeline can go in the order of `schedule`, as far as its stages are concerned.
//
// Errors: kInvalidArgument: names the schedule, what does not fit, and the nearest that does.
absl::Status CheckSchedule(const ProgramInput& input, const Schedule& schedule);

// The program of `rank`, which goes over its stages in the order of the schedule.
//
// Groups: "world" (0); the replicas of this rank's stage; of them those that hold shards of one
// whole; those that hold the same shard; those that hold secondary shards. Where two are the same
// ranks, they are one group.
//
// The schedule fits (CheckSchedule).
Program CompileProgram(const ProgramInput& input, int rank);

// The programs of all ranks. Those of ranks of one kind differ in nothing but where these are in
// their groups, and so in which blocks they own.
struct JobPrograms {
  std::vector<Program> programs;  // of the first rank of each kind
  std::vector<int> kind_of_rank;  // [ranks]
};
JobPrograms CompileJob(const ProgramInput& input);

// When sharded gradients are reduced, and why: what the plan says, else what its costs say, for
// which plan.memory_bytes_max holds what ranks exchange in, too.
ReductionChoice ReductionOf(const ProgramInput& input);
// Whether gradients that are sharded are reduced with each micro-batch.
bool ReducesEachMicroBatch(const ProgramInput& input);

// Whether the programs of a plan need to know the uses of units (UseTrace::forward).
bool NeedsUses(const Plan& plan, const Mesh& mesh);

// The rank of `mesh`, or one of them, whose step takes the most memory and sends the most: in
// ordered mode ranks differ in how many partial sums they hold.
int RankThatNeedsMost(const ProgramInput& input);
// The same of the replicas at one place of the pipeline.
int RankThatNeedsMost(const ProgramInput& input, int place);

// The stage of units [first_unit, end_unit).
StageInfo StageOfUnits(const BlockLayout& layout, int first_unit, int end_unit, UseTrace trace);
// The single stage of a model that is not cut.
StageInfo WholeModel(const BlockLayout& layout, UseTrace trace);
// The stage that a block belongs to; one of a unit is the first of its blocks of either kind.
int StageOfBlock(absl::Span<const StageInfo> stages, int64_t block);
int64_t FirstBlockOf(const BlockLayout& layout, int unit);

}  // namespace muster::plan
