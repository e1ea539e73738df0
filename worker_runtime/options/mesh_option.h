// --mesh=pp=2,dp=2,shard=4: over which dimensions the ranks of a job lie.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker_runtime/plan/plan_options.h"

namespace muster::plan {

// Puts the sizes that are named where they belong: stages of the pipeline, ranks of a shard group,
// replicas of these, and tensor ranks. Read behind the options that say the same one by one.
//
// Errors: kInvalidArgument: says what was expected, or which option says something else.
absl::Status ReadMesh(const std::string& text, PlanOptions& options);

}  // namespace muster::plan
