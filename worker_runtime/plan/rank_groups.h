// Which ranks exchange with which.
//
// Threads: pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "muster/plan.h"
#include "worker_runtime/plan/program.h"

namespace muster::plan {

// The ranks of a job: a pipeline, each place of it with as many replicas. Rank s * replicas + r is
// replica r of place s, which has stage s, or several stages in turn (ScheduleOf). A replica of all
// places together works on the micro-batches [r * accumulation, (r + 1) * accumulation) of a step.
struct Mesh {
  int stages = 1;  // places
  int replicas = 1;
  int size() const { return stages * replicas; }
};

// Those that a rank belongs to. Every rank has as many, in the same order of kinds, so that they
// can be split off together; where two are the same ranks, they are one.
struct RankGroups {
  std::vector<Group> groups;  // 0: the world
  int stage = 0;              // the replicas of its stage
  int replicas = kNone;       // those that hold the same shard, where shards have replicas
  Shards shards;              // of everything that is sharded
  Shards secondary;           // of parameters between two uses
};

RankGroups PlanRankGroups(const Plan& plan, Mesh mesh, int rank);

// How many ranks share one shard of each sharded state.
int RanksOfShard(const Plan& plan, Mesh mesh);

// plan.shard_ranks and plan.gathering.secondary_ranks divide what they are part of.
//
// Errors: kInvalidArgument: names the field.
absl::Status CheckGroups(const Plan& plan, Mesh mesh);

}  // namespace muster::plan
