// A mesh as people see it: its sizes, and which ranks lie on which node.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "muster/plan.h"
#include "worker_runtime/plan/mesh.h"

namespace muster::plan {

// "pp=2 x dp=2 x shard=4"; "dp=1" of one rank.
std::string SizesText(const Mesh& mesh);

// That there are `replicas` of each shard, as --mesh says; 0: it does not.
//
// Errors: kInvalidArgument: there are others; says how many, and what would do.
absl::Status CheckReplicas(const Plan& plan, const Mesh& mesh, int64_t replicas);

// The table of ranks, node by node, and for each dimension how far its groups reach. Empty where
// all ranks lie along one dimension.
std::string MeshPage(const Mesh& mesh, int ranks_of_node);

}  // namespace muster::plan
